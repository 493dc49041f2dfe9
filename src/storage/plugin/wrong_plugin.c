/* Plug-ins that are wrong in one thing each, chosen by the environment: for tests. */
#include <cachalot/storage_plugin.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int32_t wrong_open(const char* options, void** storage, cachalot_storage_message* why) {
  (void)options;
  *storage = NULL;
  memset(why->text, 'x', sizeof why->text); /* without its end */
  return 4711;
}
static void wrong_close(void* storage) {
  (void)storage;
}
static int32_t wrong_exists(void* storage, const cachalot_storage_key* keys, uint64_t count,
                            unsigned char* is_there, uint64_t deadline_ns,
                            cachalot_storage_message* why) {
  (void)storage, (void)keys, (void)count, (void)is_there, (void)deadline_ns, (void)why;
  return CACHALOT_STORAGE_IO;
}
static int32_t wrong_get(void* storage, cachalot_storage_get* gets, uint64_t count,
                         cachalot_storage_take take, uint64_t deadline_ns,
                         cachalot_storage_message* why) {
  (void)storage, (void)gets, (void)count, (void)take, (void)deadline_ns, (void)why;
  return CACHALOT_STORAGE_IO;
}
static int32_t wrong_put(void* storage, cachalot_storage_put* puts, uint64_t count,
                         uint64_t deadline_ns, cachalot_storage_message* why) {
  (void)storage, (void)puts, (void)count, (void)deadline_ns, (void)why;
  return CACHALOT_STORAGE_IO;
}
static int32_t wrong_remove(void* storage, const cachalot_storage_key* keys, uint64_t count,
                            uint64_t deadline_ns, cachalot_storage_message* why) {
  (void)storage, (void)keys, (void)count, (void)deadline_ns, (void)why;
  return CACHALOT_STORAGE_IO;
}
static int32_t wrong_list(void* storage, cachalot_storage_each each, void* to, uint64_t deadline_ns,
                          cachalot_storage_message* why) {
  (void)storage, (void)each, (void)to, (void)deadline_ns, (void)why;
  return CACHALOT_STORAGE_IO;
}

/* One that works until something is put, and never returns from that. */
static int32_t good_open(const char* options, void** storage, cachalot_storage_message* why) {
  (void)options, (void)why;
  *storage = NULL;
  return CACHALOT_STORAGE_OK;
}
static int32_t good_list(void* storage, cachalot_storage_each each, void* to, uint64_t deadline_ns,
                         cachalot_storage_message* why) {
  (void)storage, (void)each, (void)to, (void)deadline_ns, (void)why;
  return CACHALOT_STORAGE_OK;
}
static int32_t hanging_put(void* storage, cachalot_storage_put* puts, uint64_t count,
                           uint64_t deadline_ns, cachalot_storage_message* why) {
  (void)storage, (void)puts, (void)count, (void)deadline_ns, (void)why;
  while (1) pause();
  return CACHALOT_STORAGE_IO;
}

const cachalot_storage_plugin_table* cachalot_storage_plugin(void) {
  static cachalot_storage_plugin_table table;
  const char* const wrong = getenv("CACHALOT_TEST_WRONG");
  if (wrong == NULL || strcmp(wrong, "null") == 0) return NULL;
  table = (cachalot_storage_plugin_table){
      .struct_bytes = sizeof table,
      .version = CACHALOT_STORAGE_PLUGIN_VERSION,
      .name = "wrong",
      .open = wrong_open,
      .close = wrong_close,
      .exists = wrong_exists,
      .get = wrong_get,
      .put = wrong_put,
      .remove = wrong_remove,
      .list = wrong_list,
  };
  if (strcmp(wrong, "version") == 0) table.version = 2;
  if (strcmp(wrong, "size") == 0) table.struct_bytes -= 8;
  if (strcmp(wrong, "name") == 0) table.name = "No Name";
  if (strcmp(wrong, "function") == 0) table.list = NULL;
  if (strcmp(wrong, "hang") == 0) {
    table.open = good_open;
    table.list = good_list;
    table.put = hanging_put;
  }
  return &table;
}
