// Included before every source of a wheel. Wheels are built against the headers of glibc 2.31 and run on 2.28: what the two
// differ in is led to what both have.
#pragma once
#include <pthread.h>
#include <time.h>

// glibc 2.29 gave these a second version, which no longer reports errors by a hook that we do not use.
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver exp2, exp2@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver log2, log2@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");

#ifdef __cplusplus
extern "C" {
#endif

// Of glibc 2.30; libstdc++'s condition variables wait with it (old_glibc.c).
int cachalot_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                            const struct timespec* until);
#define pthread_cond_clockwait cachalot_cond_clockwait

// Of glibc 2.32 (old_glibc.c).
const char* sigabbrev_np(int signal);

#ifdef __cplusplus
}
#endif
