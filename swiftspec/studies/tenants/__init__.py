"""Tenants: fine-tunes and adapters of one base model, served together.

`zoo` says which of their layers are equal and what memory they take, from the files of `directories`. See
docs/models.md; `swiftspec study blockllm` serves chains of such layers in simulated time.
"""
