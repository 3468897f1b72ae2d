"""One verb per module: what the library needs is gathered and checked, called, printed and saved. Imported on use."""
