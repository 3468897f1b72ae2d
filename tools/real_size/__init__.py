"""The engine beside llama.cpp, OpenVINO GenAI and vLLM at real sizes: same weights, same cores, in turn in one run.

Each engine is a process that holds the model and answers one question per line of its input; see `engine.py`.
"""
