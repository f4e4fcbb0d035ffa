/* Of which sources this library was made: `library.py` doesn't load one that was made of others. */

#include "native.h"

int64_t stamp(void) { return STAMP; }
