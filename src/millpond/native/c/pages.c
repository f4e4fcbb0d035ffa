/* Pages of memory. */

#define _DEFAULT_SOURCE

#include "native.h"

#ifdef __linux__
#include <sys/mman.h>
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#endif

/* Get the pages of a part of a mapping all at once.  Systems that can't (Linux before 5.14) give each when it is touched. */
void get_pages(byte *begin, int64_t size) {
#ifdef __linux__
    uintptr_t first = (uintptr_t)begin & ~(uintptr_t)4095;
    madvise((void *)first, (size_t)((uintptr_t)begin + (uintptr_t)size - first), MADV_POPULATE_WRITE);
#else
    (void)begin;
    (void)size;
#endif
}
