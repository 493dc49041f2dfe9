// A pool in plain memory with a keeper that is polled by hand: a whole pool in one thread, for tests.
//
// A waiting client polls the keeper, if there is one and it is awake; the clock moves when it is read.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pool/client/client.h"
#include "pool/keeper/service/keeper.h"
#include "pool/pool.h"
#include "testing/pool/chains.h"

namespace cachalot::pool {

class StepClock final : public base::Clock {
 public:
  std::uint64_t now_ns() override { return now_ += 1000; }
  void pass(std::uint64_t ns) { now_ += ns; }

 private:
  std::uint64_t now_ = 0;
};

inline Geometry small_geometry(std::uint32_t capacity = 64, std::uint32_t slack = 64) {
  Geometry g;
  g.block_bytes = 256;
  g.capacity_blocks = capacity;
  g.blocks = capacity + slack;
  g.directory_slots = rated_directory_slots(capacity);
  g.clients = 3;
  return g;
}

// In a file of its own, for tests of processes and their locks.
inline Result<Pool> create_small_pool(const std::string& path) {
  CreateOptions create;
  create.paths = {path};
  create.geometry = small_geometry();
  create.huge_pages = create.populate = false;
  return Pool::create(create);
}

inline ClientOptions in_namespace(const char* fingerprint) {
  ClientOptions options;
  options.fingerprint = fingerprint;
  return options;
}

class TestPool final : private rpc::Waiter {
 public:
  explicit TestPool(Geometry geometry = small_geometry(),
                    std::unique_ptr<memory::Domain> domain = memory::make_coherent_domain())
      : domain_(std::move(domain)) {
    geometry.domain = domain_->kind();
    const Result<std::uint64_t> bytes = device_bytes_needed(geometry);
    EXPECT_TRUE(bytes) << (bytes ? "" : bytes.error().message);
    geometry.device_bytes = *bytes;
    memory::PoolView view;
    view.bytes_each = *bytes;
    for (std::uint32_t i = 0; i < geometry.devices; ++i) {
      memory_.emplace_back(
          static_cast<std::byte*>(std::aligned_alloc(memory::kStripeBytes, *bytes)));
      std::memset(memory_.back().get(), 0, *bytes);
      view.bases.push_back(memory_.back().get());
    }
    Result<Access> access = make_access({7, 8}, geometry, view, *domain_);
    EXPECT_TRUE(access) << (access ? "" : access.error().message);
    access_ = std::make_unique<Access>(*std::move(access));
    format_pool(*access_, 1);
  }

  const Access& access() const { return *access_; }
  memory::Domain& domain() { return *domain_; }
  StepClock& clock() { return clock_; }

  Keeper& start_keeper(KeeperOptions options = {}) {
    const Status status = try_start_keeper(options);
    EXPECT_TRUE(status) << (status ? "" : status.error().message);
    return *keeper_;
  }
  Status try_start_keeper(KeeperOptions options = {}) {
    options.use_doorbells = false;
    options.tend_interval_ns = 1;
    options.watch_interval_ns = 1;
    options.scrub_lines = scrub_lines;
    CACHALOT_TRY_ASSIGN(keeper_, Keeper::start(*access_, options, clock_, evidence));
    return {};
  }
  // One that serves, and has not looked at its clients yet.
  Keeper& start_keeper_that_has_seen_nobody(KeeperOptions options = {}) {
    options.use_doorbells = false;
    options.tend_interval_ns = options.watch_interval_ns = 1;
    Result<std::unique_ptr<Keeper>> keeper = Keeper::prepare(*access_, options, clock_, evidence);
    EXPECT_TRUE(keeper) << (keeper ? "" : keeper.error().message);
    keeper_ = *std::move(keeper);
    EXPECT_TRUE(keeper_->announce(0));
    keeper_->take_over();
    keeper_->begin_to_serve();
    return *keeper_;
  }
  // For keepers started later. Many tests write into the directory, and do not want it repaired.
  std::uint32_t scrub_lines = 0;
  Evidence* evidence = nullptr;
  // How clients that attach later see the memory, if not as the keeper does.
  std::optional<Access> client_access;

  Keeper& keeper() { return *keeper_; }
  void stop_keeper() { keeper_.reset(); }
  // The keeper dies between two instructions: nothing of what it does in its end reaches the pool.
  void kill_keeper() {
    std::vector<std::vector<std::byte>> before;
    for (const auto& device : memory_)
      before.emplace_back(device.get(), device.get() + access_->view.bytes_each);
    keeper_.reset();
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      std::memcpy(memory_[i].get(), before[i].data(), before[i].size());
    }
  }
  // A sleeping keeper exists and answers no request.
  void let_keeper_sleep(bool sleeps) { sleeps_ = sleeps; }

  Result<std::unique_ptr<Client>> try_attach(std::uint32_t slot, ClientOptions options = {}) {
    options.use_doorbells = false;
    return Client::attach(client_access ? *client_access : *access_, slot, options, *this, clock_);
  }
  std::unique_ptr<Client> attach(std::uint32_t slot, ClientOptions options = {}) {
    Result<std::unique_ptr<Client>> client = try_attach(slot, std::move(options));
    EXPECT_TRUE(client) << (client ? "" : client.error().message);
    return client ? *std::move(client) : nullptr;
  }

  // Lines of device 0, read and written past the domain.
  template <class T>
  T line_at(std::uint64_t offset) const {
    T value{};
    EXPECT_TRUE(access_->region.read_as(offset, value)) << "line at " << offset;
    return value;
  }
  template <class T>
  void put_line(std::uint64_t offset, const T& value) {
    access_->region.publish(offset, value);
  }
  void damage(std::uint64_t offset, std::uint32_t byte = 3) {
    access_->view.bases[0][offset + byte] ^= std::byte{0x40};
  }
  // The slot in which the entry of a hash stands, or kNoSlot.
  std::uint32_t slot_of(const BlockHash& hash) const {
    for (std::uint32_t slot = 0; slot < access_->geometry.directory_slots; ++slot) {
      Entry entry{};
      if (access_->region.read_as(access_->layout.entry(slot), entry) &&
          entry.state == kEntryLive && entry.hash_low == hash.low && entry.hash_high == hash.high) {
        return slot;
      }
    }
    return DirectoryWriter::kNoSlot;
  }
  Entry entry_of(const BlockHash& hash) const {
    const std::uint32_t slot = slot_of(hash);
    return slot == DirectoryWriter::kNoSlot ? Entry{} : line_at<Entry>(access_->layout.entry(slot));
  }

  // Chains as in chains.h.
  std::vector<Verdict> put(Client& client, std::uint64_t first, std::size_t n,
                           const BlockHash* parent = nullptr) {
    return put_chain(client, access_->geometry.block_bytes, first, n, parent);
  }
  std::size_t size_of(std::uint64_t name) const {
    return length_of(name, access_->geometry.block_bytes);
  }
  std::size_t read(Client& client, std::uint64_t first, std::size_t n) {
    return read_chain(client, access_->geometry.block_bytes, first, n);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  void wait(std::uint32_t) override {
    if (keeper_ != nullptr && !sleeps_) keeper_->poll();
  }

  std::unique_ptr<memory::Domain> domain_;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  StepClock clock_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<Keeper> keeper_;
  bool sleeps_ = false;
};

// A client that says whatever it likes: one message at a time, each line its own choice.
class RawClient {
 public:
  struct Answer {
    bool came = false;
    rpc::ResponseHead head{};
    std::vector<rpc::FollowingLine> following;

    Code code() const { return static_cast<Code>(head.status); }
    bool is_yes() const { return came && head.status == 0; }
    template <class T>
    T payload() const {
      return rpc::load_payload<T>(head.payload);
    }
  };

  RawClient(TestPool& pool, std::uint32_t slot) : pool_(pool), slot_(slot) { attach(); }

  void attach() {
    const Access& access = pool_.access();
    ClientLine line{};
    line.incarnation = ++incarnation_;
    line.flags = kClientAttached;
    line.epoch = pool_.keeper().epoch();
    pool_.put_line(access.layout.client_line(slot_), line);
    pool_.keeper().tend();
    requests_ = rpc::RingWriter(access.region.salted(rpc::request_salt(incarnation_)),
                                access.layout.request_ring(slot_), kRingLines);
    const std::uint32_t keeper_slot = DirectoryReader(access).read_keepers().keeper;
    responses_ = rpc::RingReader(access.region.salted(rpc::response_salt(incarnation_, line.epoch)),
                                 access.layout.response_ring(keeper_slot, slot_), kRingLines);
  }

  template <class T = rpc::FollowingLine>
  static rpc::RequestHead head_of(Op op, std::uint16_t count = 0, const T& payload = {},
                                  std::uint8_t lines = 1) {
    rpc::RequestHead head{};
    head.op = static_cast<std::uint8_t>(op);
    head.lines = lines;
    head.count = count;
    if constexpr (sizeof(T) <= rpc::kRequestPayloadBytes) rpc::store_payload(head.payload, payload);
    return head;
  }

  // Posts, lets the keeper work and takes one answer. The epoch is filled in where it is 0.
  Answer ask(rpc::RequestHead head, std::span<const rpc::FollowingLine> following = {}) {
    if (head.epoch == 0) head.epoch = pool_.keeper().epoch();
    requests_.write(memory::to_line(head));
    for (const rpc::FollowingLine& line : following) requests_.write(memory::to_line(line));
    pool_.keeper().poll();
    pool_.keeper().poll();  // the second reads what the first one's window left
    return take();
  }
  Answer take() {
    Answer answer;
    memory::Line line;
    if (!next(line)) return answer;
    answer.came = true;
    answer.head = memory::as<rpc::ResponseHead>(line);
    for (std::uint32_t i = 1; i < answer.head.lines; ++i) {
      EXPECT_TRUE(next(line)) << "a response is shorter than it says";
      answer.following.push_back(memory::as<rpc::FollowingLine>(line));
    }
    return answer;
  }

  std::uint32_t open_namespace(std::uint64_t digest = 5) {
    const Answer answer = ask(head_of(Op::kNamespace, 0, NamespacePayload{digest, 1, 0}));
    EXPECT_TRUE(answer.is_yes());
    return answer.payload<NamespaceAnswer>().namespace_id;
  }
  std::vector<BlockUse> grant(std::uint16_t count) {
    const Answer answer = ask(head_of(Op::kGrant, count));
    std::vector<BlockUse> uses;
    if (!answer.is_yes()) return uses;
    for (std::uint32_t i = 0; i < answer.head.count; ++i) {
      const std::uint32_t j = i - kUsesInResponse;
      uses.push_back(i < kUsesInResponse ? answer.payload<GrantAnswer>().uses[i]
                                         : rpc::load_payload<UsesFollowing>(
                                               answer.following[j / kUsesInFollowing].payload)
                                               .uses[j % kUsesInFollowing]);
    }
    return uses;
  }
  // Commits a chain. @return the verdicts, or none if the message was refused
  std::vector<Verdict> commit(std::uint32_t namespace_id, const BlockHash* parent,
                              std::span<const CommitItem> items, std::uint32_t flags = 0) {
    CommitPayload chain{namespace_id, parent != nullptr, 0, 0, flags};
    if (parent != nullptr) chain = {namespace_id, 1, parent->low, parent->high, flags};
    std::vector<rpc::FollowingLine> lines(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) rpc::store_payload(lines[i].payload, items[i]);
    const auto n = static_cast<std::uint16_t>(items.size());
    const Answer answer =
        ask(head_of(Op::kCommit, n, chain, static_cast<std::uint8_t>(n + 1)), lines);
    if (!answer.is_yes()) return {};
    const auto verdicts = answer.payload<CommitAnswer>();
    return {verdicts.verdicts, verdicts.verdicts + n};
  }
  Verdict commit_one(std::uint32_t namespace_id, const BlockHash* parent, const CommitItem& item) {
    const std::vector<Verdict> verdicts = commit(namespace_id, parent, {&item, 1});
    EXPECT_EQ(verdicts.size(), 1u);
    return verdicts.empty() ? Verdict::kNotHeld : verdicts[0];
  }
  static CommitItem item(std::uint64_t name, const BlockUse& use, std::uint32_t length = 64) {
    const BlockHash hash = hash_of(name);
    return {hash.low, hash.high, 0, use, length, 0};
  }

  rpc::RingWriter& requests() { return requests_; }
  std::uint32_t incarnation() const { return incarnation_; }

 private:
  bool next(memory::Line& line) {
    pool_.domain().read_lines(responses_.address(0), 1, &line);
    if (responses_.accept(&line, 1) == 0) return false;
    responses_.advance(1);
    return true;
  }

  TestPool& pool_;
  std::uint32_t slot_;
  std::uint32_t incarnation_ = 100;
  rpc::RingWriter requests_;
  rpc::RingReader responses_;
};

}  // namespace cachalot::pool
