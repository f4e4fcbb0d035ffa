/* A number for the sources of this library: `library.py` doesn't load a library that was built from others. */

#include "native.h"

int64_t stamp(void) { return STAMP; }
