/* cmake/wheel/old_glibc.c where the C library has no waits by the monotonic clock: they end in time, and not before. */
#define _GNU_SOURCE
#include <dlfcn.h>
static void* finds_nothing(void* handle, const char* name) {
  (void)handle;
  (void)name;
  return 0;
}
#define dlsym finds_nothing
#include "../../cmake/wheel/old_glibc.c"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(condition)                                            \
  if (!(condition)) {                                                \
    fprintf(stderr, "line %d: expected %s\n", __LINE__, #condition); \
    return 1;                                                        \
  }

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

static struct timespec after(double seconds) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  const int64_t ns = at.tv_nsec + (int64_t)(seconds * 1e9);
  at.tv_sec += ns / 1000000000 - (ns % 1000000000 < 0);
  at.tv_nsec = ns % 1000000000 + (ns % 1000000000 < 0 ? 1000000000 : 0);
  return at;
}

static int is_over(struct timespec at) {
  const struct timespec now = after(0);
  return now.tv_sec != at.tv_sec ? now.tv_sec > at.tv_sec : now.tv_nsec >= at.tv_nsec;
}

static int wait_until(struct timespec at) {
  return cachalot_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &at);
}

static void* wake(void* unused) {
  pthread_mutex_lock(&mutex);
  pthread_cond_signal(&condition);
  pthread_mutex_unlock(&mutex);
  return unused;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int lock_until(struct timespec at) {
  return __wrap_pthread_mutex_clocklock(&lock, CLOCK_MONOTONIC, &at);
}

static void* hold_lock(void* seconds) {
  pthread_mutex_lock(&lock);
  wake(NULL);
  usleep((useconds_t)(*(double*)seconds * 1e6));
  pthread_mutex_unlock(&lock);
  return NULL;
}

int main(void) {
  pthread_mutex_lock(&mutex);
  EXPECT(wait_until(after(-0.5)) == ETIMEDOUT);
  EXPECT(wait_until(after(-1e6)) == ETIMEDOUT);

  for (int i = 0; i < 20; ++i) {
    const struct timespec soon = after(0.01);
    while (!is_over(soon)) EXPECT(wait_until(soon) == ETIMEDOUT);
  }
  /* However far the end is, a wait comes back for the caller to look at its clock. */
  const struct timespec never = {.tv_sec = (time_t)1 << 60, .tv_nsec = 999999999};
  EXPECT(wait_until(never) == ETIMEDOUT);
  EXPECT(!is_over(never));

  pthread_t waker;
  EXPECT(pthread_create(&waker, NULL, wake, NULL) == 0);
  int result = ETIMEDOUT;
  while (result == ETIMEDOUT)
    result = wait_until(after(600)); /* the waker signals while this waits, and only then */
  EXPECT(result == 0);
  pthread_join(waker, NULL);

  /* A lock that is free is taken, also when its time is over. One that is held: longer than a part of the wait. */
  EXPECT(lock_until(after(-1)) == 0 && pthread_mutex_unlock(&lock) == 0);
  double held = 2.5;
  pthread_t holder;
  EXPECT(pthread_create(&holder, NULL, hold_lock, &held) == 0);
  result = ETIMEDOUT;
  while (result == ETIMEDOUT) result = wait_until(after(600));
  const struct timespec before = after(1.2);
  EXPECT(lock_until(before) == ETIMEDOUT && is_over(before));
  EXPECT(lock_until(after(600)) == 0 && pthread_mutex_unlock(&lock) == 0);
  pthread_join(holder, NULL);

  EXPECT(strcmp(sigabbrev_np(9), "KILL") == 0 && strcmp(sigabbrev_np(SIGTERM), "TERM") == 0);
  EXPECT(sigabbrev_np(0) == NULL && sigabbrev_np(-1) == NULL && sigabbrev_np(64) == NULL);
  EXPECT(arc4random() != arc4random() || arc4random() != arc4random());
  return 0;
}
