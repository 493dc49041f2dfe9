// CHECK is for our own bugs: a condition that no input from outside can make false.
// Input from outside gets a Result.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CACHALOT_CHECK(condition)                                                           \
  do {                                                                                      \
    if (!(condition)) [[unlikely]] {                                                        \
      std::fprintf(stderr, "cachalot: bug: %s at %s:%d\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)
