#include "sim/cluster/link_network.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot::sim {
namespace {

constexpr double kDone = 0.5;  // bytes: less than one is rounding

}  // namespace

LinkId LinkNetwork::add_link(double bytes_per_s) {
  links_.push_back(Link{.bytes_per_s = bytes_per_s});
  return static_cast<LinkId>(links_.size() - 1);
}

TransferId LinkNetwork::start(double now_s, const Transfer& transfer) {
  advance(now_s);
  TransferId id;
  if (free_.empty()) {
    id = static_cast<TransferId>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  if (transfer.link_count == 0) {
    flows_[id] = Flow{.transfer = transfer};
    arriving_.push({now_s + transfer.latency_s, order_++, id});
    return id;
  }
  flows_[id] = Flow{.transfer = transfer, .left = transfer.bytes, .is_sending = true};
  for (const LinkId link : links_of(flows_[id])) ++links_[link].transfers;
  sending_.push_back(id);
  share();
  return id;
}

double LinkNetwork::cancel(double now_s, TransferId id) {
  advance(now_s);
  Flow& flow = flows_[id];
  flow.transfer.tag = ~std::uint64_t{0};
  if (!flow.is_sending) return 0;  // its arrival is not reported
  if (flow.left <= kDone) flow.left = 0;
  const double unsent = flow.left;
  stop_sending(id);
  free_.push_back(id);
  share();
  return unsent;
}

double LinkNetwork::next_s() const {
  return arriving_.empty() ? next_sent_s_ : std::min(next_sent_s_, arriving_.top().at_s);
}

std::optional<std::uint64_t> LinkNetwork::pop(double now_s) {
  if (next_sent_s_ <= now_s) {
    advance(now_s);
    for (std::size_t i = 0; i < sending_.size();) {
      const TransferId id = sending_[i];
      Flow& flow = flows_[id];
      // What takes less than the clock can tell is over, too.
      if (flow.left > kDone && now_s + flow.left / flow.rate > now_s) {
        ++i;
        continue;
      }
      flow.left = 0;
      stop_sending(id);
      arriving_.push({now_s + flow.transfer.latency_s, order_++, id});
    }
    share();
  }
  while (!arriving_.empty() && arriving_.top().at_s <= now_s) {
    const TransferId id = arriving_.top().id;
    arriving_.pop();
    free_.push_back(id);
    const std::uint64_t tag = flows_[id].transfer.tag;
    if (tag != ~std::uint64_t{0}) return tag;
  }
  return std::nullopt;
}

void LinkNetwork::advance(double now_s) {
  const double passed_s = now_s - now_s_;
  now_s_ = now_s;
  if (passed_s <= 0) return;
  for (const TransferId id : sending_) {
    Flow& flow = flows_[id];
    flow.left = std::max(0.0, flow.left - flow.rate * passed_s);
  }
}

void LinkNetwork::stop_sending(TransferId id) {
  Flow& flow = flows_[id];
  CACHALOT_CHECK(flow.is_sending);
  flow.is_sending = false;
  const double sent = flow.transfer.bytes - flow.left;
  total_bytes_ += sent;
  for (const LinkId link : links_of(flow)) {
    links_[link].bytes += sent;
    --links_[link].transfers;
  }
  std::erase(sending_, id);
}

void LinkNetwork::fix(Flow& flow, double rate) {
  flow.rate = rate;
  flow.is_fixed = true;
  for (const LinkId link : links_of(flow)) {
    links_[link].left = std::max(0.0, links_[link].left - rate);
    --links_[link].waiting;
  }
}

// Water filling: the link with the smallest equal share limits its transfers; then the rest shares what is left.
void LinkNetwork::share() {
  used_.clear();
  for (const TransferId id : sending_) {
    flows_[id].is_fixed = false;
    for (const LinkId link : links_of(flows_[id])) {
      if (links_[link].waiting++ != 0) continue;
      links_[link].left = links_[link].bytes_per_s;
      used_.push_back(link);
    }
  }
  std::size_t open = sending_.size();
  while (open != 0) {
    double least = std::numeric_limits<double>::infinity();
    for (const LinkId link : used_) {
      if (links_[link].waiting == 0) continue;
      least = std::min(least, links_[link].left / links_[link].waiting);
    }
    // Transfers that cannot use as much as their equal share give the rest back first.
    bool is_own_limit = false;
    for (const TransferId id : sending_) {
      Flow& flow = flows_[id];
      if (flow.is_fixed || flow.transfer.most_bytes_per_s > least) continue;
      fix(flow, flow.transfer.most_bytes_per_s);
      is_own_limit = true;
      --open;
    }
    if (is_own_limit) continue;
    for (const TransferId id : sending_) {
      Flow& flow = flows_[id];
      if (flow.is_fixed) continue;
      const bool is_limited = std::ranges::any_of(links_of(flow), [&](LinkId link) {
        return links_[link].left / links_[link].waiting <= least * (1 + 1e-12);
      });
      if (!is_limited) continue;
      fix(flow, least);
      --open;
    }
  }
  next_sent_s_ = std::numeric_limits<double>::infinity();
  for (const TransferId id : sending_) {
    next_sent_s_ = std::min(next_sent_s_, now_s_ + flows_[id].left / flows_[id].rate);
  }
}

}  // namespace cachalot::sim
