/* Preloaded into a broker: the disk below the folder KLAMM_DISK_UNDER, as a test wants it.

   Journal: one line, in the file KLAMM_DISK_JOURNAL, for each thing that reaches the disk: "S size path" (synced when it
   had that size), "T size path" (cut to that size), "R from<TAB>to" (renamed), "F path" (a sync that failed).
   Control: the file KLAMM_DISK_CONTROL holds five int64, mapped, so that a new value takes effect at the next call: how
   many of the next syncs of .log files fail with EIO; by how many milliseconds each sync and each write of a .log file is
   delayed; whether the disk is limited to so many bytes more, and how many: a write beyond them is short, and the next
   one fails with ENOSPC, whatever is removed meanwhile. Boot id: KLAMM_DISK_BOOT_ID names the file that is read in place
   of the kernel's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define REAL(name) ((__typeof__(&name))real(#name))

struct control {
    int64_t failing_syncs;
    int64_t sync_delay_ms;
    int64_t write_delay_ms;
    int64_t limited;
    int64_t room;
};

static struct control none;
static volatile struct control *control = &none;
static const char *under, *boot_id;
static size_t under_length;
static int journal = -1;

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void begin(void)
{
    under = getenv("KLAMM_DISK_UNDER");
    boot_id = getenv("KLAMM_DISK_BOOT_ID");
    const char *path = getenv("KLAMM_DISK_JOURNAL");
    if (under == NULL || path == NULL)
        return;
    under_length = strlen(under);
    journal = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    path = getenv("KLAMM_DISK_CONTROL");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        control = mapped;
}

/* The path of an open file, if it is below the folder. */
static int path_of(int fd, char *path, size_t size)
{
    char link[64];
    if (under == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strncmp(path, under, under_length) == 0;
}

static int is_log(const char *path)
{
    size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, ".log") == 0;
}

static void note(char what, long long size, const char *path)
{
    char line[2 * 4096];
    int length = snprintf(line, sizeof line, "%c %lld %s\n", what, size, path);
    if (journal >= 0 && REAL(write)(journal, line, length) < 0)
        return;
}

static void wait_ms(int64_t ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    if (ms > 0)
        nanosleep(&time, NULL);
}

static int synced(int fd, int (*sync_file)(int))
{
    char path[4096];
    struct stat before;
    if (!path_of(fd, path, sizeof path) || fstat(fd, &before) < 0)
        return sync_file(fd);
    if (is_log(path)) {
        wait_ms(control->sync_delay_ms);
        if (control->failing_syncs > 0 && __atomic_fetch_sub(&control->failing_syncs, 1, __ATOMIC_SEQ_CST) > 0) {
            note('F', 0, path);
            errno = EIO;
            return -1;
        }
    }
    int result = sync_file(fd);
    if (result == 0 && S_ISREG(before.st_mode))
        note('S', before.st_size, path);
    return result;
}

int fsync(int fd)
{
    return synced(fd, REAL(fsync));
}

int fdatasync(int fd)
{
    return synced(fd, REAL(fdatasync));
}

static int note_file(const char *path, const struct stat *found, int type, struct FTW *place)
{
    (void)place;
    if (type == FTW_F)
        note('S', found->st_size, path);
    return 0;
}

int syncfs(int fd)
{
    if (under != NULL)
        nftw(under, note_file, 16, FTW_PHYS); /* noted first: their sizes now are what the disk certainly gets */
    return REAL(syncfs)(fd);
}

int ftruncate(int fd, off_t size)
{
    char path[4096];
    int result = REAL(ftruncate)(fd, size);
    if (result == 0 && path_of(fd, path, sizeof path))
        note('T', size, path);
    return result;
}

int ftruncate64(int fd, off64_t size)
{
    return ftruncate(fd, size);
}

int rename(const char *from, const char *to)
{
    char line[2 * 4096];
    int result = REAL(rename)(from, to);
    if (result == 0 && journal >= 0) {
        int length = snprintf(line, sizeof line, "R %s\t%s\n", from, to);
        if (REAL(write)(journal, line, length) < 0)
            return result;
    }
    return result;
}

static void delay_write(int fd)
{
    char path[4096];
    if (control->write_delay_ms > 0 && path_of(fd, path, sizeof path) && is_log(path))
        wait_ms(control->write_delay_ms);
}

/* How many of `size` bytes there is room for; 0 if a write of them has to fail. */
static size_t room_for(int fd, size_t size)
{
    char path[4096];
    if (!control->limited || size == 0 || !path_of(fd, path, sizeof path))
        return size;
    int64_t before = __atomic_fetch_sub(&control->room, (int64_t)size, __ATOMIC_SEQ_CST);
    if (before >= (int64_t)size)
        return size;
    return before > 0 ? (size_t)before : 0;
}

static ssize_t refuse(void)
{
    errno = ENOSPC;
    return -1;
}

ssize_t write(int fd, const void *data, size_t size)
{
    size_t room = room_for(fd, size);
    return room < size && room == 0 ? refuse() : REAL(write)(fd, data, room);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    delay_write(fd);
    size_t room = room_for(fd, size);
    return room < size && room == 0 ? refuse() : REAL(pwrite)(fd, data, room, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    delay_write(fd);
    size_t room = room_for(fd, size);
    return room < size && room == 0 ? refuse() : REAL(pwrite64)(fd, data, room, at);
}

static const char *instead(const char *path)
{
    return boot_id != NULL && strcmp(path, BOOT_ID) == 0 ? boot_id : path;
}

#define MODE                                                                                                          \
    mode_t mode = 0;                                                                                                  \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                              \
        va_list more;                                                                                                 \
        va_start(more, flags);                                                                                        \
        mode = va_arg(more, mode_t);                                                                                  \
        va_end(more);                                                                                                 \
    }

int open(const char *path, int flags, ...)
{
    MODE
    return REAL(open)(instead(path), flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE
    return REAL(open64)(instead(path), flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    MODE
    return REAL(openat)(folder, instead(path), flags, mode);
}
