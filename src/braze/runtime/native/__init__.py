"""Sources in C++ of the extension modules that are built on the machine."""
