"""Files of every kind this package reads and writes: pure functions between bytes and arrays.

Rules for every reader: sizes are checked before anything is allocated, the CRC before anything is used, byte order is
little-endian and spelled out, and no reader ever runs code from a file.
"""
