#include "pool/keeper/open_chains.h"

#include <algorithm>

namespace cachalot::pool {

void OpenChains::open(std::uint32_t client, std::uint32_t tail) {
  const auto is_of_client = [client](const Chain& chain) { return chain.client == client; };
  if (std::count_if(chains_.begin(), chains_.end(), is_of_client) >= kMostOfAClient) {
    chains_.erase(std::find_if(chains_.begin(), chains_.end(), is_of_client));
  }
  chains_.push_back({client, tail});
}

void OpenChains::close(std::uint32_t client, std::uint32_t tail) {
  const auto at = std::find_if(chains_.begin(), chains_.end(), [&](const Chain& chain) {
    return chain.client == client && chain.tail == tail;
  });
  if (at != chains_.end()) chains_.erase(at);
}

void OpenChains::forget_client(std::uint32_t client) {
  std::erase_if(chains_, [client](const Chain& chain) { return chain.client == client; });
}

void OpenChains::forget_block(std::uint32_t block) {
  if (chains_.empty()) return;
  std::erase_if(chains_, [block](const Chain& chain) { return chain.tail == block; });
}

void OpenChains::give_way(std::uint32_t client) {
  if (chains_.empty()) return;
  const auto own = std::find_if(chains_.begin(), chains_.end(),
                                [client](const Chain& chain) { return chain.client == client; });
  chains_.erase(own != chains_.end() ? own : chains_.begin());
}

bool OpenChains::has_tail(std::uint32_t block) const {
  return std::any_of(chains_.begin(), chains_.end(),
                     [block](const Chain& chain) { return chain.tail == block; });
}

}  // namespace cachalot::pool
