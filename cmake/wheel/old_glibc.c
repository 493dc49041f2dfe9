// What libstdc++ of GCC 12 and glibc 2.31's headers use, and glibc 2.28 has not. tools/setup-wheel puts it into the part of
// the C library that is linked statically; the symbols are hidden, so each library has its own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#pragma GCC visibility push(hidden)

// Of 2.32: whether a process has one thread only, so that counters need no atomics. Never sure of it.
char __libc_single_threaded = 0;

// Of 2.36: std::random_device.
uint32_t arc4random(void) {
  uint32_t word;
  if (getrandom(&word, sizeof(word), 0) != sizeof(word)) abort();
  return word;
}

// Of 2.32: "KILL" of 9, as the end of a child is told.
const char* sigabbrev_np(int signal) {
  static const char* const kNames[] = {
      [SIGHUP] = "HUP",   [SIGINT] = "INT",   [SIGQUIT] = "QUIT", [SIGILL] = "ILL",
      [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT", [SIGBUS] = "BUS",   [SIGFPE] = "FPE",
      [SIGKILL] = "KILL", [SIGUSR1] = "USR1", [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",
      [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM", [SIGTERM] = "TERM", [SIGXCPU] = "XCPU",
      [SIGXFSZ] = "XFSZ", [SIGSYS] = "SYS"};
  return signal >= 0 && signal < (int)(sizeof(kNames) / sizeof(kNames[0])) ? kNames[signal] : NULL;
}

// Waits by the monotonic clock are of 2.30; before it, a wait is by the clock of the day. Each is cut into parts of a second at
// most, so that it ends in time whatever happens to that clock: *part is the end of the next one. ETIMEDOUT: it is over.
static int next_part(clockid_t clock, const struct timespec* until, struct timespec* part) {
  const int64_t kSecond = 1000000000;
  if (clock_gettime(clock, part) != 0) return EINVAL;
  const time_t seconds = until->tv_sec - part->tv_sec;
  if (seconds < -1) return ETIMEDOUT;
  int64_t left = seconds > 1 ? kSecond : seconds * kSecond + until->tv_nsec - part->tv_nsec;
  if (left <= 0) return ETIMEDOUT;
  if (left > kSecond) left = kSecond;
  clock_gettime(CLOCK_REALTIME, part);
  part->tv_sec += (part->tv_nsec + left) / kSecond;
  part->tv_nsec = (part->tv_nsec + left) % kSecond;
  return 0;
}

// The C library's own functions, where it has them.
static pthread_once_t looked_up = PTHREAD_ONCE_INIT;
static int (*own_wait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
static int (*own_lock)(pthread_mutex_t*, clockid_t, const struct timespec*);

static void look_up(void) {
  *(void**)&own_wait = dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
  *(void**)&own_lock = dlsym(RTLD_DEFAULT, "pthread_mutex_clocklock");
}

// Coming back early is allowed: the caller looks at its own clock.
int cachalot_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                            const struct timespec* until) {
  pthread_once(&looked_up, look_up);
  if (own_wait != NULL) return own_wait(condition, mutex, clock, until);
  struct timespec part;
  const int error = next_part(clock, until, &part);
  return error != 0 ? error : pthread_cond_timedwait(condition, mutex, &part);
}

// In the place of pthread_mutex_clocklock (toolchain.cmake), std::timed_mutex. Its caller takes the answer as it is.
int __wrap_pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                   const struct timespec* until) {
  pthread_once(&looked_up, look_up);
  if (own_lock != NULL) return own_lock(mutex, clock, until);
  int result = pthread_mutex_trylock(mutex);
  if (result == EBUSY) result = ETIMEDOUT;
  while (result == ETIMEDOUT) {
    struct timespec part;
    const int error = next_part(clock, until, &part);
    if (error != 0) return error;
    result = pthread_mutex_timedlock(mutex, &part);
  }
  return result;
}

#pragma GCC visibility pop
