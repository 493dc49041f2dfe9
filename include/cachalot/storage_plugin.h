/* What a shared library implements to keep blocks for Cachalot: --storage "plugin:/path/lib.so?name=value".
 *
 * The library exports one function, cachalot_storage_plugin(), which returns a table of functions. Cachalot moves
 * values through it: an object is a key of 32 bytes and a value of up to 4 GiB, both opaque. The first
 * CACHALOT_STORAGE_HEAD_BYTES of a value are its head, which list() hands out. Cachalot verifies and, if it is asked
 * to, encrypts values itself.
 *
 * Rules
 *   1. After put() has set CACHALOT_STORAGE_OK for a value, exists(), get() and list() find it, until it is removed.
 *      A value that is there already may be replaced or kept.
 *   2. A value is replaced as a whole.
 *   3. After a call has returned, the library accesses none of the memory it was given.
 *   4. A call returns at about its deadline, a time of CLOCK_MONOTONIC in ns: CACHALOT_STORAGE_TIMEOUT. Cachalot cannot
 *      end a call.
 *   5. Calls come from any threads simultaneously. No call lets an exception out.
 *
 * A call that returns another result than OK has failed for all its items whose own result it has not set.
 *
 * Structs grow at their end only; struct_bytes says what the library knows. Plain C11, no other header of Cachalot.
 */
#ifndef CACHALOT_STORAGE_PLUGIN_H
#define CACHALOT_STORAGE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CACHALOT_STORAGE_PLUGIN_VERSION 1u
#define CACHALOT_STORAGE_KEY_BYTES 32u
#define CACHALOT_STORAGE_HEAD_BYTES 112u
#define CACHALOT_STORAGE_MESSAGE_BYTES 200u

/* Results. */
#define CACHALOT_STORAGE_OK 0
#define CACHALOT_STORAGE_NOT_FOUND 1        /* of one value */
#define CACHALOT_STORAGE_CORRUPT 2          /* of one value: Cachalot removes it */
#define CACHALOT_STORAGE_INVALID_ARGUMENT 3 /* wrong options */
#define CACHALOT_STORAGE_NO_SPACE 4
#define CACHALOT_STORAGE_PERMISSION 5
#define CACHALOT_STORAGE_TIMEOUT 6
#define CACHALOT_STORAGE_IO 7 /* and all that is not named above */

typedef struct cachalot_storage_key {
  unsigned char bytes[CACHALOT_STORAGE_KEY_BYTES];
} cachalot_storage_key;

typedef struct cachalot_storage_piece {
  const void* data;
  uint64_t bytes;
} cachalot_storage_piece;

typedef struct cachalot_storage_put {
  cachalot_storage_key key;
  const cachalot_storage_piece* pieces; /* together the value */
  uint64_t piece_count;
  uint64_t value_bytes;
  int32_t result; /* filled by the library; OK before the call */
} cachalot_storage_put;

typedef struct cachalot_storage_get {
  cachalot_storage_key key;
  void* to;       /* for take() */
  int32_t result; /* filled by the library; OK before the call */
} cachalot_storage_get;

/* Takes the next bytes of a value, which may come in pieces. Returns 0 if it wants no more of them. */
typedef int32_t (*cachalot_storage_take)(void* to, const void* data, uint64_t bytes);

/* Takes the head of a value. Returns 0 to end the list. */
typedef int32_t (*cachalot_storage_each)(void* to, const void* head);

/* A failed call writes why, as text that ends with a zero byte. */
typedef struct cachalot_storage_message {
  char text[CACHALOT_STORAGE_MESSAGE_BYTES];
} cachalot_storage_message;

typedef struct cachalot_storage_plugin_table {
  uint64_t struct_bytes; /* sizeof(cachalot_storage_plugin_table) */
  uint32_t version;      /* CACHALOT_STORAGE_PLUGIN_VERSION */
  uint32_t is_shared;    /* 1: others may put and remove values in the same storage, too */
  const char* name;      /* in messages and metrics: lower-case letters, digits, "_" */

  /* Options: what stands after "?", as "name=value&name=value", decoded but for the separators. */
  int32_t (*open)(const char* options, void** storage, cachalot_storage_message* why);
  void (*close)(void* storage);
  /* is_there: 0 or 1 for each key. */
  int32_t (*exists)(void* storage, const cachalot_storage_key* keys, uint64_t count,
                    unsigned char* is_there, uint64_t deadline_ns, cachalot_storage_message* why);
  /* Hands each value to take(get.to, ...). */
  int32_t (*get)(void* storage, cachalot_storage_get* gets, uint64_t count,
                 cachalot_storage_take take, uint64_t deadline_ns, cachalot_storage_message* why);
  int32_t (*put)(void* storage, cachalot_storage_put* puts, uint64_t count, uint64_t deadline_ns,
                 cachalot_storage_message* why);
  /* Keys that are not there are no error. */
  int32_t (*remove)(void* storage, const cachalot_storage_key* keys, uint64_t count,
                    uint64_t deadline_ns, cachalot_storage_message* why);
  /* Hands the first CACHALOT_STORAGE_HEAD_BYTES of each value to each(to, ...), in the order of their puts if the
   * library knows it. */
  int32_t (*list)(void* storage, cachalot_storage_each each, void* to, uint64_t deadline_ns,
                  cachalot_storage_message* why);
} cachalot_storage_plugin_table;

/* The function that the library exports. The table stays as it is and where it is while the library is loaded. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const cachalot_storage_plugin_table*
cachalot_storage_plugin(void);

#ifdef __cplusplus
}
#endif

#endif /* CACHALOT_STORAGE_PLUGIN_H */
