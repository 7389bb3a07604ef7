/* What a disk would hold if the power failed now: for LD_PRELOAD.

   Whenever a file below $WATCHED is synced, its contents are copied to the same place below
   $SHADOW, before the sync returns. Deleted and renamed files are so when their folder is synced.
   So the shadow holds what was synced, and nothing else. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The shadow of a path, or 0 if the path is not watched. */
static int shadow_of(const char *path, char *shadow)
{
    const char *watched = getenv("WATCHED"), *below = getenv("SHADOW");
    size_t length = watched ? strlen(watched) : 0;
    if (!length || !below || strncmp(path, watched, length))
        return 0;
    return snprintf(shadow, PATH_MAX, "%s%s", below, path + length) < PATH_MAX;
}

static void make_parents(char *path)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
}

static void copy_file(int from, char *shadow)
{
    char partial[PATH_MAX + 32];
    struct stat status;
    off_t done = 0;
    make_parents(shadow);
    snprintf(partial, sizeof partial, "%s.copy%ld", shadow, syscall(SYS_gettid));
    int to = open(partial, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    fstat(from, &status);
    while (done < status.st_size && sendfile(to, from, &done, status.st_size - done) > 0)
        ;
    close(to);
    syscall(SYS_rename, partial, shadow);
}

static struct { char from[PATH_MAX], to[PATH_MAX]; } renamed[64];
static int renames;
static pthread_mutex_t renaming = PTHREAD_MUTEX_INITIALIZER;

/* A synced folder has files under their new names, and no more what was deleted from it. */
static void copy_folder(const char *path, char *shadow)
{
    make_parents(shadow);
    mkdir(shadow, 0755);
    pthread_mutex_lock(&renaming);
    for (int k = 0; k < renames; k++)
        syscall(SYS_rename, renamed[k].from, renamed[k].to);
    renames = 0;
    pthread_mutex_unlock(&renaming);
    DIR *folder = opendir(shadow);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        char original[PATH_MAX + 300], copy[PATH_MAX + 300];
        snprintf(original, sizeof original, "%s/%s", path, entry->d_name);
        snprintf(copy, sizeof copy, "%s/%s", shadow, entry->d_name);
        if (!strstr(entry->d_name, ".copy") && access(original, F_OK))
            unlink(copy);
    }
    if (folder)
        closedir(folder);
}

static void was_synced(int fd)
{
    char link[64], path[PATH_MAX], shadow[PATH_MAX];
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = 0;
    if (!shadow_of(path, shadow) || fstat(fd, &status))
        return;
    if (S_ISDIR(status.st_mode))
        copy_folder(path, shadow);
    else {
        int again = open(link, O_RDONLY);
        copy_file(again, shadow);
        close(again);
    }
}

int fsync(int fd)
{
    int result = syscall(SYS_fsync, fd), number = errno;
    if (!result)
        was_synced(fd);
    errno = number;
    return result;
}

int fdatasync(int fd)
{
    int result = syscall(SYS_fdatasync, fd), number = errno;
    if (!result)
        was_synced(fd);
    errno = number;
    return result;
}

int rename(const char *from, const char *to)
{
    int result = syscall(SYS_rename, from, to), number = errno;
    pthread_mutex_lock(&renaming);
    if (!result && renames < 64 && shadow_of(from, renamed[renames].from) &&
        shadow_of(to, renamed[renames].to))
        renames++;
    pthread_mutex_unlock(&renaming);
    errno = number;
    return result;
}
