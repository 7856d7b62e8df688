"""What a process did to the files of a folder, recorded by `io_recorder.c` in the order in which it happened."""

_CREATED, _EMPTIED, _SYNCHRONOUS = 1, 2, 4
