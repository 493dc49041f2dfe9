#include "os/limits.h"

#include <sys/resource.h>

#include <algorithm>

namespace cachalot::os {

std::uint64_t raise_descriptor_limit() {
  constexpr rlim_t kMost = rlim_t{1} << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit wanted{std::max(limit.rlim_cur, std::min(limit.rlim_max, kMost)), limit.rlim_max};
  return setrlimit(RLIMIT_NOFILE, &wanted) == 0 ? wanted.rlim_cur : limit.rlim_cur;
}

}  // namespace cachalot::os
