/* A storage plug-in that keeps each value in a file of a folder: the shortest one that keeps all rules of
 * cachalot/storage_plugin.h, and no fast one.
 *
 *   cc -shared -fPIC -o libfolder_storage.so folder_storage.c
 *   --storage "plugin:/path/libfolder_storage.so?folder=/ssd/kv"
 *
 * With &read_mb_s=50 it reads at most so many MB (10^6 bytes) a second, to try out how a slow storage behaves.
 */
#define _GNU_SOURCE
#include <cachalot/storage_plugin.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 2 * CACHALOT_STORAGE_KEY_BYTES + 1, BUFFER_BYTES = 1 << 16 };

struct storage {
  int folder;
  atomic_ullong unfinished; /* numbers of the files that are being written */
  uint64_t read_bytes_s;    /* 0: no limit */
  atomic_ullong busy_until_ns;
};

static int32_t fail(cachalot_storage_message* why, const char* what) {
  const int os_error = errno;
  snprintf(why->text, sizeof why->text, "%s: %s", what, strerror(os_error));
  if (os_error == ENOSPC || os_error == EDQUOT) return CACHALOT_STORAGE_NO_SPACE;
  if (os_error == EACCES || os_error == EPERM) return CACHALOT_STORAGE_PERMISSION;
  return CACHALOT_STORAGE_IO;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Returns when a device of read_bytes_s that serves one read after the other would have read so many bytes. */
static void pace(struct storage* storage, uint64_t bytes) {
  if (storage->read_bytes_s == 0) return;
  const uint64_t takes_ns = bytes * 1000000000u / storage->read_bytes_s;
  unsigned long long busy = atomic_load(&storage->busy_until_ns), until;
  do {
    const uint64_t begin = now_ns();
    /* A sleep that ended late is made up for by the next ones. */
    until = (busy + 5000000u > begin ? busy : begin) + takes_ns;
  } while (!atomic_compare_exchange_weak(&storage->busy_until_ns, &busy, until));
  const struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
  }
}

static int is_late(uint64_t deadline_ns, cachalot_storage_message* why) {
  if (now_ns() < deadline_ns) return 0;
  snprintf(why->text, sizeof why->text, "not done before the deadline");
  return 1;
}

static void name_of(const cachalot_storage_key* key, char name[NAME_BYTES]) {
  for (size_t i = 0; i < CACHALOT_STORAGE_KEY_BYTES; ++i)
    snprintf(name + 2 * i, 3, "%02x", key->bytes[i]);
}

/* "folder=PATH", or "folder=PATH&read_mb_s=N" with N from 1 to 1000000: the number ends the path. */
static int is_understood(char* options, uint64_t* read_bytes_s) {
  char* const more = strchr(options, '&');
  *read_bytes_s = 0;
  if (more != NULL) {
    if (strncmp(more, "&read_mb_s=", 11) != 0 || more[11] < '1' || more[11] > '9') return 0;
    char* end = NULL;
    const unsigned long mb = strtoul(more + 11, &end, 10);
    if (*end != '\0' || mb > 1000000) return 0;
    *read_bytes_s = mb * UINT64_C(1000000);
    *more = '\0';
  }
  return strncmp(options, "folder=", 7) == 0 && options[7] != '\0';
}

static int32_t folder_open(const char* options, void** storage, cachalot_storage_message* why) {
  char text[1024];
  uint64_t read_bytes_s = 0;
  const int length = snprintf(text, sizeof text, "%s", options);
  if (length < 0 || (size_t)length >= sizeof text || !is_understood(text, &read_bytes_s)) {
    snprintf(why->text, sizeof why->text,
             "options \"%.80s\", expected folder=PATH, and &read_mb_s=1 to 1000000 for a limit",
             options);
    return CACHALOT_STORAGE_INVALID_ARGUMENT;
  }
  const char* const path = text + 7;
  if (mkdir(path, 0700) != 0 && errno != EEXIST) return fail(why, path);
  struct storage* const made = calloc(1, sizeof *made);
  if (made == NULL) return fail(why, path);
  made->read_bytes_s = read_bytes_s;
  made->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (made->folder < 0) {
    free(made);
    return fail(why, path);
  }
  *storage = made;
  return CACHALOT_STORAGE_OK;
}

static void folder_close(void* storage) {
  close(((struct storage*)storage)->folder);
  free(storage);
}

static int32_t folder_exists(void* storage, const cachalot_storage_key* keys, uint64_t count,
                             unsigned char* is_there, uint64_t deadline_ns,
                             cachalot_storage_message* why) {
  (void)deadline_ns, (void)why;
  for (uint64_t i = 0; i < count; ++i) {
    char name[NAME_BYTES];
    name_of(&keys[i], name);
    is_there[i] = faccessat(((struct storage*)storage)->folder, name, R_OK, 0) == 0;
  }
  return CACHALOT_STORAGE_OK;
}

static int32_t get_one(struct storage* storage, cachalot_storage_get* get,
                       cachalot_storage_take take, cachalot_storage_message* why) {
  char name[NAME_BYTES];
  name_of(&get->key, name);
  const int file = openat(storage->folder, name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT ? CACHALOT_STORAGE_NOT_FOUND : fail(why, name);
  char buffer[BUFFER_BYTES];
  ssize_t got;
  while ((got = read(file, buffer, sizeof buffer)) > 0) {
    pace(storage, (uint64_t)got);
    if (!take(get->to, buffer, (uint64_t)got)) break;
  }
  const int32_t result = got < 0 ? fail(why, name) : CACHALOT_STORAGE_OK;
  close(file);
  return result;
}

static int32_t folder_get(void* storage, cachalot_storage_get* gets, uint64_t count,
                          cachalot_storage_take take, uint64_t deadline_ns,
                          cachalot_storage_message* why) {
  for (uint64_t i = 0; i < count; ++i) {
    gets[i].result = is_late(deadline_ns, why)
                         ? CACHALOT_STORAGE_TIMEOUT
                         : get_one((struct storage*)storage, &gets[i], take, why);
  }
  return CACHALOT_STORAGE_OK;
}

static int write_all(int file, const cachalot_storage_piece* piece) {
  uint64_t done = 0;
  while (done < piece->bytes) {
    const ssize_t some = write(file, (const char*)piece->data + done, piece->bytes - done);
    if (some < 0 && errno != EINTR) return -1;
    if (some > 0) done += (uint64_t)some;
  }
  return 0;
}

/* Under another name first: a value is there as a whole, or not at all. Processes of other hosts and containers may have
 * the same number, so a name that is there belongs to one of them. */
static int32_t put_one(struct storage* storage, const cachalot_storage_put* put,
                       cachalot_storage_message* why) {
  char name[NAME_BYTES], unfinished[40];
  name_of(&put->key, name);
  int file;
  do {
    snprintf(unfinished, sizeof unfinished, "new.%d.%llu", (int)getpid(),
             atomic_fetch_add(&storage->unfinished, 1));
    file = openat(storage->folder, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  } while (file < 0 && errno == EEXIST);
  if (file < 0) return fail(why, name);
  int failed = 0;
  for (uint64_t i = 0; i < put->piece_count && !failed; ++i)
    failed = write_all(file, &put->pieces[i]);
  failed = failed || renameat(storage->folder, unfinished, storage->folder, name) != 0;
  const int32_t result = failed ? fail(why, name) : CACHALOT_STORAGE_OK;
  if (failed) unlinkat(storage->folder, unfinished, 0);
  close(file);
  return result;
}

static int32_t folder_put(void* storage, cachalot_storage_put* puts, uint64_t count,
                          uint64_t deadline_ns, cachalot_storage_message* why) {
  for (uint64_t i = 0; i < count; ++i) {
    puts[i].result = is_late(deadline_ns, why) ? CACHALOT_STORAGE_TIMEOUT
                                               : put_one((struct storage*)storage, &puts[i], why);
  }
  return CACHALOT_STORAGE_OK;
}

static int32_t folder_remove(void* storage, const cachalot_storage_key* keys, uint64_t count,
                             uint64_t deadline_ns, cachalot_storage_message* why) {
  (void)deadline_ns;
  for (uint64_t i = 0; i < count; ++i) {
    char name[NAME_BYTES];
    name_of(&keys[i], name);
    if (unlinkat(((struct storage*)storage)->folder, name, 0) != 0 && errno != ENOENT)
      return fail(why, name);
  }
  return CACHALOT_STORAGE_OK;
}

static int32_t folder_list(void* storage, cachalot_storage_each each, void* to,
                           uint64_t deadline_ns, cachalot_storage_message* why) {
  const int own =
      openat(((struct storage*)storage)->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const names = own < 0 ? NULL : fdopendir(own);
  if (names == NULL) return fail(why, "list");
  int32_t result = CACHALOT_STORAGE_OK;
  for (struct dirent* one; (one = readdir(names)) != NULL;) {
    if (strlen(one->d_name) != NAME_BYTES - 1) continue;
    if (is_late(deadline_ns, why)) {
      result = CACHALOT_STORAGE_TIMEOUT;
      break;
    }
    unsigned char head[CACHALOT_STORAGE_HEAD_BYTES];
    const int file = openat(own, one->d_name, O_RDONLY | O_CLOEXEC);
    const ssize_t got = file < 0 ? -1 : read(file, head, sizeof head);
    if (file >= 0) close(file);
    if (got == (ssize_t)sizeof head && !each(to, head)) break;
  }
  closedir(names);
  return result;
}

static const cachalot_storage_plugin_table table = {
    .struct_bytes = sizeof(cachalot_storage_plugin_table),
    .version = CACHALOT_STORAGE_PLUGIN_VERSION,
    .is_shared = 1,
    .name = "folder",
    .open = folder_open,
    .close = folder_close,
    .exists = folder_exists,
    .get = folder_get,
    .put = folder_put,
    .remove = folder_remove,
    .list = folder_list,
};

const cachalot_storage_plugin_table* cachalot_storage_plugin(void) {
  return &table;
}
