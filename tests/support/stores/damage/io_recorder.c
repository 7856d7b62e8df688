/* Records what a process does to the files below one folder: LD_PRELOAD=io_recorder.so
 *
 *   CAIRN_IO_ROOT   the folder; everything else passes unseen
 *   CAIRN_IO_LOG    records are appended here: struct record, then its path, its second path and its data
 *   CAIRN_IO_FAIL   while this file exists, every sync below the folder fails with EIO, does nothing and is recorded
 *
 * One lock around each call and its record, so that their order in the log is the order in which they happened.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, MKDIR, FAILED_SYNC };
enum { CREATED = 1, EMPTIED = 2, SYNCHRONOUS = 4 };

struct record {
    uint32_t op, flags, path_len, other_len;
    uint64_t inode, offset, length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static int log_fd = -1;

#define FDS 4096
static char watched[FDS]; /* 1: below the root; 2: and opened to write synchronously */

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CAIRN_IO_LOG");
    root = getenv("CAIRN_IO_ROOT");
    if (path && root)
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int below(const char *path) {
    return log_fd >= 0 && path && !strncmp(path, root, strlen(root));
}

static int is_watched(int fd) { return log_fd >= 0 && fd >= 0 && fd < FDS && watched[fd]; }

static uint64_t inode(int fd) {
    struct stat status;
    return fstat(fd, &status) ? 0 : (uint64_t)status.st_ino;
}

static void note(int op, int flags, uint64_t id, uint64_t offset, const char *path, const char *other,
                 const struct iovec *data, int count, uint64_t length) {
    int saved = errno;
    struct record head = {(uint32_t)op, (uint32_t)flags, (uint32_t)(path ? strlen(path) : 0),
                          (uint32_t)(other ? strlen(other) : 0), id, offset, length};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, head.path_len}, {(void *)other, head.other_len}};
    syscall(SYS_writev, log_fd, parts, 3);
    for (int i = 0; i < count && length; i++) {
        size_t part = data[i].iov_len < length ? data[i].iov_len : (size_t)length;
        syscall(SYS_write, log_fd, data[i].iov_base, part);
        length -= part;
    }
    errno = saved;
}

static int opened(int fd, const char *path, int flags, int existed) {
    if (fd >= 0 && fd < FDS) {
        watched[fd] = below(path) ? (flags & O_DSYNC ? 2 : 1) : 0;
        if (watched[fd] && (flags & O_ACCMODE) != O_RDONLY)
            note(OPEN, (existed ? 0 : CREATED) | (flags & O_TRUNC ? EMPTIED : 0), inode(fd), 0, path, NULL, NULL, 0, 0);
    }
    return fd;
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    if (!below(path) || (flags & O_TMPFILE) == O_TMPFILE) { /* a file without a name leaves nothing */
        int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
        if (fd >= 0 && fd < FDS) watched[fd] = 0;
        return fd;
    }
    pthread_mutex_lock(&lock);
    int existed = !(flags & O_CREAT) || !faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW);
    int fd = opened((int)syscall(SYS_openat, folder, path, flags, mode), path, flags, existed);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags, mode)                                        \
    mode_t mode = 0;                                             \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                       \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode = (mode_t)va_arg(rest, int);                        \
        va_end(rest);                                            \
    }

int open(const char *path, int flags, ...) { MODE(flags, mode) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, mode) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags, mode) return open_at(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags, mode) return open_at(at, path, flags, mode); }

int close(int fd) {
    if (fd >= 0 && fd < FDS) watched[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

static ssize_t wrote(int fd, off_t at, const struct iovec *data, int count, ssize_t done) {
    if (done > 0)
        note(WRITE, watched[fd] == 2 ? SYNCHRONOUS : 0, inode(fd), (uint64_t)at, NULL, NULL, data, count, (uint64_t)done);
    return done;
}

#define RECORDED(call, fd, at, data, count)                      \
    if (!is_watched(fd)) return call;                            \
    pthread_mutex_lock(&lock);                                   \
    off_t position = at;                                         \
    ssize_t done = wrote(fd, position, data, count, call);       \
    pthread_mutex_unlock(&lock);                                 \
    return done;

static off_t here(int fd) {
    return fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec one = {(void *)data, size};
    RECORDED(REAL(write)(fd, data, size), fd, here(fd), &one, 1)
}
ssize_t writev(int fd, const struct iovec *data, int count) {
    RECORDED(REAL(writev)(fd, data, count), fd, here(fd), data, count)
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    struct iovec one = {(void *)data, size};
    RECORDED(REAL(pwrite)(fd, data, size, at), fd, at, &one, 1)
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    struct iovec one = {(void *)data, size};
    RECORDED(REAL(pwrite)(fd, data, size, at), fd, at, &one, 1)
}
ssize_t pwritev(int fd, const struct iovec *data, int count, off_t at) {
    RECORDED(REAL(pwritev)(fd, data, count, at), fd, at, data, count)
}
ssize_t pwritev64(int fd, const struct iovec *data, int count, off_t at) {
    RECORDED(REAL(pwritev)(fd, data, count, at), fd, at, data, count)
}

static int resized(int fd, uint64_t id, off_t size, int failed) {
    (void)fd;
    if (!failed) note(TRUNCATE, 0, id, (uint64_t)size, NULL, NULL, NULL, 0, 0);
    return failed;
}

static int cut_fd(int fd, off_t size) {
    if (!is_watched(fd)) return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int failed = resized(fd, inode(fd), size, (int)syscall(SYS_ftruncate, fd, size));
    pthread_mutex_unlock(&lock);
    return failed;
}
int ftruncate(int fd, off_t size) { return cut_fd(fd, size); }
int ftruncate64(int fd, off_t size) { return cut_fd(fd, size); }

static int cut_path(const char *path, off_t size) {
    struct stat status;
    if (!below(path) || stat(path, &status)) return (int)syscall(SYS_truncate, path, size);
    pthread_mutex_lock(&lock);
    int failed = resized(-1, (uint64_t)status.st_ino, size, (int)syscall(SYS_truncate, path, size));
    pthread_mutex_unlock(&lock);
    return failed;
}
int truncate(const char *path, off_t size) { return cut_path(path, size); }
int truncate64(const char *path, off_t size) { return cut_path(path, size); }

static int reserve(int fd, off_t at, off_t size) {
    struct stat status;
    if (!is_watched(fd)) return REAL(posix_fallocate)(fd, at, size);
    pthread_mutex_lock(&lock);
    int code = REAL(posix_fallocate)(fd, at, size);
    if (!code && !fstat(fd, &status)) resized(fd, inode(fd), status.st_size, 0);
    pthread_mutex_unlock(&lock);
    return code;
}
int posix_fallocate(int fd, off_t at, off_t size) { return reserve(fd, at, size); }
int posix_fallocate64(int fd, off_t at, off_t size) { return reserve(fd, at, size); }

static int synced(int fd, long number) {
    if (!is_watched(fd)) return (int)syscall(number, fd);
    const char *fail = getenv("CAIRN_IO_FAIL");
    int fails = fail && !faccessat(AT_FDCWD, fail, F_OK, 0);
    pthread_mutex_lock(&lock);
    int failed = fails ? -1 : (int)syscall(number, fd);
    if (fails || !failed) note(fails ? FAILED_SYNC : SYNC, 0, inode(fd), 0, NULL, NULL, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    if (fails) errno = EIO;
    return failed;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

#define NAMED(call, op, path, other)                             \
    if (!below(path)) return call;                               \
    pthread_mutex_lock(&lock);                                   \
    int failed = call;                                           \
    struct stat status;                                          \
    uint64_t id = op == MKDIR && !stat(path, &status) ? (uint64_t)status.st_ino : 0; \
    if (!failed) note(op, 0, id, 0, path, other, NULL, 0, 0);    \
    pthread_mutex_unlock(&lock);                                 \
    return failed;

int rename(const char *old, const char *path) { NAMED(REAL(rename)(old, path), RENAME, old, path) }
int renameat(int a, const char *old, int b, const char *path) { NAMED(REAL(renameat)(a, old, b, path), RENAME, old, path) }
int unlink(const char *path) { NAMED(REAL(unlink)(path), UNLINK, path, NULL) }
int unlinkat(int at, const char *path, int flags) { NAMED(REAL(unlinkat)(at, path, flags), UNLINK, path, NULL) }
int rmdir(const char *path) { NAMED(REAL(rmdir)(path), UNLINK, path, NULL) }
int mkdir(const char *path, mode_t mode) { NAMED(REAL(mkdir)(path, mode), MKDIR, path, NULL) }
int mkdirat(int at, const char *path, mode_t mode) { NAMED(REAL(mkdirat)(at, path, mode), MKDIR, path, NULL) }
