// Links that concurrent transfers share fairly, so that a congested sender is slow for all that it sends.
//
// A transfer uses some links at once. Rates are max-min fair: no transfer can get more without one that has no more
// than it getting less. After its bytes a transfer takes the latency once. One without links takes only that: a message, or a
// delay.
//
// 1. The rates of a link's transfers never add up to more than its bandwidth.
// 2. The bytes of a link are the sum of the bytes of the transfers that used it, whole or as far as they came.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <queue>
#include <span>
#include <vector>

namespace cachalot::sim {

using LinkId = std::uint32_t;
using TransferId = std::uint32_t;
inline constexpr TransferId kNoTransfer = std::numeric_limits<TransferId>::max();

// @threads one at a time
// @cost    start and end of a transfer: O(transfers in flight * links in use)
class LinkNetwork {
 public:
  static constexpr std::size_t kMostLinks = 4;  // of a transfer

  struct Transfer {
    std::array<LinkId, kMostLinks> links{};
    std::uint32_t link_count = 0;
    double bytes = 0;
    double latency_s = 0;
    double most_bytes_per_s = std::numeric_limits<double>::infinity();
    std::uint64_t tag = 0;  // the caller's
  };

  LinkId add_link(double bytes_per_s);

  // Times never go back, from call to call.
  TransferId start(double now_s, const Transfer& transfer);
  // It ends without its end being reported; its bytes so far count. @return bytes that were not sent
  double cancel(double now_s, TransferId id);

  // When something happens next; infinity: nothing is in flight.
  double next_s() const;
  // A transfer that has ended by now, which is at most next_s(); call again until there is none.
  std::optional<std::uint64_t> pop(double now_s);

  std::uint64_t in_flight(LinkId link) const { return links_[link].transfers; }
  double bytes(LinkId link) const { return links_[link].bytes; }
  double rate(TransferId id) const { return flows_[id].rate; }
  // Of all transfers that have ended or were cancelled.
  double total_bytes() const { return total_bytes_; }

 private:
  struct Link {
    double bytes_per_s = 0;
    double bytes = 0;
    std::uint64_t transfers = 0;
    double left = 0;            // while rates are computed
    std::uint32_t waiting = 0;  // likewise
  };
  struct Flow {
    Transfer transfer;
    double left = 0;  // bytes
    double rate = 0;
    bool is_fixed = false;
    bool is_sending = false;
  };
  struct Arrival {
    double at_s;
    std::uint64_t order;
    TransferId id;
    bool operator>(const Arrival& other) const {
      return at_s != other.at_s ? at_s > other.at_s : order > other.order;
    }
  };

  std::span<const LinkId> links_of(const Flow& flow) const {
    return std::span(flow.transfer.links).first(flow.transfer.link_count);
  }
  void advance(double now_s);
  void share();
  void stop_sending(TransferId id);
  void fix(Flow& flow, double rate);

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<TransferId> free_;
  std::vector<TransferId> sending_;  // in the order of their start
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arriving_;
  std::vector<LinkId> used_;
  double now_s_ = 0;
  double next_sent_s_ = std::numeric_limits<double>::infinity();
  std::uint64_t order_ = 0;
  double total_bytes_ = 0;
};

}  // namespace cachalot::sim
