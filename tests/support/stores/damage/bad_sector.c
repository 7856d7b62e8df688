/* A sector that cannot be read: what maps a file named data.mdb finds, in place of one of its pages, the map of an empty
 * file, so that touching it raises SIGBUS, as the kernel does after an input/output error.
 *
 * BAD_PAGE: the page's number in the file, read at each mapping. Preload it (LD_PRELOAD).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void *(*mmap_function)(void *, size_t, int, int, int, off_t);

static void *mapped(const char *name, void *address, size_t length, int protection, int flags, int file, off_t offset) {
    mmap_function real = (mmap_function)dlsym(RTLD_NEXT, name);
    void *map = real(address, length, protection, flags, file, offset);
    const char *bad = getenv("BAD_PAGE");
    if (map == MAP_FAILED || file < 0 || bad == NULL) return map;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 9 || strncmp(path + size - 9, "/data.mdb", 9) != 0) return map;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), at = (size_t)atol(bad) * page;
    if (at + page > length) return map;
    int empty = memfd_create("bad sector", MFD_CLOEXEC);
    real((char *)map + at, page, PROT_READ, MAP_SHARED | MAP_FIXED, empty, 0);
    close(empty);
    return map;
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    return mapped("mmap", address, length, protection, flags, file, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    return mapped("mmap64", address, length, protection, flags, file, offset);
}
