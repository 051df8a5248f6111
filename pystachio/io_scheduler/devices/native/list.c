/* The files of a folder: see disk.h. One call, where Python would make one for each file. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "disk.h"

enum { LONGEST_NUMBERS = 64 };

int64_t pystachio_disk_list(const char *folder, char *out, int64_t room) {
    DIR *entries = opendir(folder);
    int64_t needed = 0;
    int error = 0;
    if (!entries) return -errno;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(entries);
        struct stat status;
        if (!entry) {
            error = errno;
            break;
        }
        if (fstatat(dirfd(entries), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) continue;
        char numbers[LONGEST_NUMBERS];
        long long changed = (long long)status.st_mtim.tv_sec * 1000000000LL + status.st_mtim.tv_nsec;
        int digits = snprintf(numbers, sizeof numbers, "%lld %lld ", (long long)status.st_size, changed);
        int64_t name = (int64_t)strlen(entry->d_name) + 1;
        if (needed + digits + name <= room) {
            memcpy(out + needed, numbers, (size_t)digits);
            memcpy(out + needed + digits, entry->d_name, (size_t)name);
        }
        needed += digits + name;
    }
    closedir(entries);
    return error ? -error : needed;
}
