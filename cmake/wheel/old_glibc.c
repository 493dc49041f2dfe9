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

static pthread_once_t looked_up = PTHREAD_ONCE_INIT;
static int (*own)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

static void look_up(void) {
  *(void**)&own = dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
}

// The C library's own where it has one. Before 2.30 a wait is by the clock of the day. Coming back early is allowed, and the
// caller looks at its own clock: so a wait ends after a second at most, whatever happens to the clock of the day.
int cachalot_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                            const struct timespec* until) {
  pthread_once(&looked_up, look_up);
  if (own != NULL) return own(condition, mutex, clock, until);

  const int64_t kSecond = 1000000000;
  struct timespec now;
  if (clock_gettime(clock, &now) != 0) return EINVAL;
  const time_t seconds = until->tv_sec - now.tv_sec;
  if (seconds < -1) return ETIMEDOUT;
  int64_t left = seconds > 1 ? kSecond : seconds * kSecond + until->tv_nsec - now.tv_nsec;
  if (left <= 0) return ETIMEDOUT;
  if (left > kSecond) left = kSecond;
  clock_gettime(CLOCK_REALTIME, &now);
  now.tv_sec += (now.tv_nsec + left) / kSecond;
  now.tv_nsec = (now.tv_nsec + left) % kSecond;
  return pthread_cond_timedwait(condition, mutex, &now);
}

#pragma GCC visibility pop
