#include "pool/open_when_made.h"

#include <chrono>
#include <thread>

#include "pool/making.h"

namespace cachalot::pool {

Result<Pool> open_when_made(const std::vector<std::string>& paths, const OpenOptions& options,
                            std::uint32_t patience_ms) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  for (;;) {
    Result<Pool> opened = Pool::open(paths, options);
    if (opened || paths.empty() || std::chrono::steady_clock::now() >= give_up) return opened;
    const bool may_come =
        opened.error().code == Code::kBusy ||
        (opened.error().code == Code::kNotAPool && look_for_maker(paths[0]) != Making::kNone);
    if (!may_come) return opened;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace cachalot::pool
