/* Injects one fault into the calls of a process that change files below a folder.

   Load it with LD_PRELOAD, and call fault_arm. The calls are recorded in a shared file. At the given number, the process
   stops itself first if asked to, and then the fault happens: SIGKILL, or an error number from this call on. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, FAIL, FAIL_ONCE };
enum { WRITES = 1, SYNCS = 2, NAMES = 4, CREATIONS = 8, REMOVALS = 16 };

/* What the tests read: the number of calls, the number of faults that happened, and the kind and the file of each call.
   The file of a rename is the one that gets another name. */
enum { CALLS = 1 << 16, NAME = 512 };
struct record {
    int count, faults;
    unsigned char kinds[CALLS];
    char files[CALLS][NAME];
};
static char folder[PATH_MAX];
static volatile struct record *record;
static int target, mode, error, calls, stops;

void fault_arm(const char *path, const char *record_path, int number, int what, int error_number, int which, int stop) {
    int file = open(record_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct record))) return;
    record = mmap(NULL, sizeof(struct record), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    target = number, mode = what, error = error_number, calls = which, stops = stop;
    snprintf(folder, sizeof folder, "%s", path);
}

/* Return whether a call on this path fails. */
static int faulty_rename(const char *from, const char *path, int kind) {
    if (!record || strncmp(path, folder, strlen(folder))) return 0;
    if (kind & CREATIONS ? !(calls & CREATIONS) : 0) return 0;
    int number = kind & CREATIONS ? record->count : __sync_add_and_fetch(&record->count, 1);
    if (!(kind & CREATIONS) && number < CALLS) {
        record->kinds[number] = kind;
        snprintf((char *)record->files[number], NAME, "%s", from);
    }
    if (number == target && !(kind & CREATIONS)) {
        if (stops) raise(SIGSTOP);
        if (mode == KILL) {
            record->faults++;
            kill(getpid(), SIGKILL);
        }
    }
    if (!(calls & kind)) return 0;
    if (mode == FAIL_ONCE ? number != target || (kind & CREATIONS) : mode != FAIL || number < target) return 0;
    record->faults++;
    errno = error;
    return 1;
}

static int faulty_path(const char *path, int kind) { return faulty_rename(path, path, kind); }

/* Write the path of an open file; return whether it has one. */
static int path_of(int file, char path[PATH_MAX]) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int faulty_file(int file, int kind) {
    char path[PATH_MAX];
    return record && path_of(file, path) && faulty_path(path, kind);
}

/* Write the path of a name in an open folder. */
static void full_path(int at, const char *name, char path[PATH_MAX]) {
    char parent[PATH_MAX];
    if (at == AT_FDCWD || *name == '/' || !path_of(at, parent)) snprintf(path, PATH_MAX, "%s", name);
    else if (snprintf(path, PATH_MAX, "%s/%s", parent, name) >= PATH_MAX) *path = 0;
}

static int faulty_name(int at, const char *name, int kind) {
    char path[PATH_MAX];
    if (!record) return 0;
    full_path(at, name, path);
    return faulty_path(path, kind);
}

static int faulty_names(int from_folder, const char *from, int to_folder, const char *to) {
    char source[PATH_MAX], path[PATH_MAX];
    if (!record) return 0;
    full_path(from_folder, from, source);
    full_path(to_folder, to, path);
    return faulty_rename(source, path, NAMES);
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size) {
    if (faulty_file(file, WRITES)) return -1;
    return REAL(ssize_t, write, int, const void *, size_t)(file, data, size);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    if (faulty_file(file, WRITES)) return -1;
    return REAL(ssize_t, writev, int, const struct iovec *, int)(file, parts, count);
}
/* Calls with and without 64 are the same on 64-bit systems; libraries use both. */
#define WRITE(type, name, parameters, arguments)                                                                       \
    type name parameters {                                                                                             \
        if (faulty_file(file, WRITES)) return -1;                                                                      \
        return ((type(*) parameters)dlsym(RTLD_NEXT, #name))arguments;                                                 \
    }
WRITE(ssize_t, pwrite, (int file, const void *data, size_t size, off_t start), (file, data, size, start))
WRITE(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t start), (file, data, size, start))
WRITE(ssize_t, sendfile, (int file, int source, off_t *start, size_t size), (file, source, start, size))
WRITE(ssize_t, sendfile64, (int file, int source, off64_t *start, size_t size), (file, source, start, size))
WRITE(int, ftruncate, (int file, off_t size), (file, size))
WRITE(int, ftruncate64, (int file, off64_t size), (file, size))
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    if (faulty_file(fileno(file), WRITES)) return 0;
    return REAL(size_t, fwrite, const void *, size_t, size_t, FILE *)(data, size, count, file);
}
ssize_t copy_file_range(int source, off64_t *from, int file, off64_t *to, size_t size, unsigned int flags) {
    if (faulty_file(file, WRITES)) return -1;
    return REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned int)(source, from, file, to,
                                                                                                size, flags);
}
int fsync(int file) {
    if (faulty_file(file, SYNCS)) return -1;
    return REAL(int, fsync, int)(file);
}
int fdatasync(int file) {
    if (faulty_file(file, SYNCS)) return -1;
    return REAL(int, fdatasync, int)(file);
}
int rename(const char *from, const char *to) {
    if (faulty_rename(from, to, NAMES)) return -1;
    return REAL(int, rename, const char *, const char *)(from, to);
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    if (faulty_names(from_folder, from, to_folder, to)) return -1;
    return REAL(int, renameat, int, const char *, int, const char *)(from_folder, from, to_folder, to);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned int flags) {
    if (faulty_names(from_folder, from, to_folder, to)) return -1;
    return REAL(int, renameat2, int, const char *, int, const char *, unsigned int)(from_folder, from, to_folder, to,
                                                                                    flags);
}
int mkdir(const char *path, mode_t permissions) {
    if (faulty_path(path, CREATIONS)) return -1;
    return REAL(int, mkdir, const char *, mode_t)(path, permissions);
}
int unlink(const char *path) {
    if (faulty_path(path, REMOVALS)) return -1;
    return REAL(int, unlink, const char *)(path);
}
int unlinkat(int at, const char *path, int flags) {
    if (faulty_name(at, path, REMOVALS)) return -1;
    return REAL(int, unlinkat, int, const char *, int)(at, path, flags);
}
int rmdir(const char *path) {
    if (faulty_path(path, REMOVALS)) return -1;
    return REAL(int, rmdir, const char *)(path);
}
#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t permissions = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                 \
        va_end(rest);                                                                                                  \
        if (flags & (O_CREAT | O_WRONLY | O_RDWR) && faulty_path(path, CREATIONS)) return -1;                          \
        return REAL(int, name, const char *, int, mode_t)(path, flags, permissions);                                   \
    }
OPEN(open)
OPEN(open64)
#define OPEN_AT(name)                                                                                                  \
    int name(int at, const char *path, int flags, ...) {                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t permissions = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                 \
        va_end(rest);                                                                                                  \
        if (flags & (O_CREAT | O_WRONLY | O_RDWR) && faulty_name(at, path, CREATIONS)) return -1;                      \
        return REAL(int, name, int, const char *, int, mode_t)(at, path, flags, permissions);                          \
    }
OPEN_AT(openat)
OPEN_AT(openat64)
