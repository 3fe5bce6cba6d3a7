/* Preloaded into a worker: its wall clock is off by the seconds that stand in $CHAOS_OFFSET (a file, read at each call, so the clock
 * can jump), it gets no inotify, and a folder's listing lacks names that are younger than $CHAOS_LAG seconds, as on NFS. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    const char *path = getenv("CHAOS_OFFSET");
    char text[32] = {0};
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    return got > 0 ? strtol(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t which, struct timespec *found) {
    int result = syscall(SYS_clock_gettime, which, found);
    if (result == 0 && which == CLOCK_REALTIME) found->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}

int inotify_init(void) { errno = EMFILE; return -1; }
int inotify_init1(int flags) { (void)flags; errno = EMFILE; return -1; }

struct dirent64 *readdir64(DIR *folder) {
    static struct dirent64 *(*next)(DIR *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "readdir64");
    const char *lag = getenv("CHAOS_LAG");
    struct dirent64 *entry;
    while ((entry = next(folder)) && lag) {
        struct stat found;
        struct timespec now;
        syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
        if (fstatat(dirfd(folder), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) || !S_ISREG(found.st_mode)) break;
        double age = (now.tv_sec - found.st_ctim.tv_sec) + (now.tv_nsec - found.st_ctim.tv_nsec) / 1e9;
        if (age >= atof(lag)) break;
    }
    return entry;
}
