"""The language model, its training, its text and its adapters, on every backend that CPython has."""
