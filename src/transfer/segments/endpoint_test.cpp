#include <cachalot/transfer_endpoint.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include "base/rng.h"
#include "os/child.h"
#include "os/file_descriptor.h"

namespace cachalot {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kLong = 20 * kSecond;

std::vector<std::byte> random_bytes(std::size_t count, base::Rng& rng) {
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng.next());
  return bytes;
}

TransferEndpoint open_endpoint(const std::string& name, std::vector<std::string> listen,
                               bool checksums = false) {
  Result<TransferEndpoint> opened =
      TransferEndpoint::open({.name = name, .listen = std::move(listen), .checksums = checksums});
  if (!opened) ADD_FAILURE() << opened.error().message;
  return *std::move(opened);
}

// The offset of each byte, one by one.
std::vector<std::uint64_t> places(const StridedBytes& s, std::size_t loop = 0,
                                  std::uint64_t at = 0) {
  std::vector<std::uint64_t> all;
  if (loop == s.loops.size()) {
    for (std::uint64_t i = 0; i < s.run_bytes; ++i) all.push_back(s.offset + at + i);
    return all;
  }
  const StridedLoop& l = s.loops[loop];
  for (std::uint64_t i = 0; i < l.count; ++i) {
    const auto inner =
        places(s, loop + 1, at + (l.offsets.empty() ? i * l.stride_bytes : l.offsets[i]));
    all.insert(all.end(), inner.begin(), inner.end());
  }
  return all;
}

// `total` bytes in pages of a random order, between gaps. No byte twice, all within `room`.
StridedBytes any_places(std::uint64_t total, std::uint64_t first, std::uint64_t room,
                        base::Rng& rng) {
  const auto divisor = [&](std::uint64_t number) {
    std::vector<std::uint64_t> all;
    for (std::uint64_t d = 1; d <= number; ++d) {
      if (number % d == 0) all.push_back(d);
    }
    return all[rng.below(all.size())];
  };
  StridedBytes s;
  const std::uint64_t pages = divisor(total);
  const std::uint64_t runs = divisor(total / pages);
  s.run_bytes = total / pages / runs;
  const std::uint64_t step = s.run_bytes + rng.below(4);
  const std::uint64_t page = step * runs;
  if (page * pages > room) return {first, {}, total};
  std::vector<std::uint64_t> order(room / page);
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = 0; i + 1 < order.size(); ++i)
    std::swap(order[i], order[i + rng.below(order.size() - i)]);
  StridedLoop outer{pages, 0, {}};
  for (std::uint64_t i = 0; i < pages; ++i) outer.offsets.push_back(order[i] * page);
  s.offset = first;
  s.loops = {outer, {runs, step, {}}};
  return s;
}

class Endpoints : public ::testing::TestWithParam<const char*> {
 protected:
  Endpoints() {
    const Status registered = owner.register_memory("kv", std::span(memory).subspan(kGuard, kBytes),
                                                    SegmentAccess::kReadWrite);
    EXPECT_TRUE(registered.ok());
    Result<Segment> opened = other.open({"owner", owner.addresses()}, "kv", kLong);
    EXPECT_TRUE(opened) << opened.error().message;
    segment = *std::move(opened);
  }
  ~Endpoints() override {
    // Nothing is left, and nothing has come outside.
    settle();
    EXPECT_EQ(owner.statistics().open_served_batches, 0u);
    EXPECT_EQ(other.statistics().open_batches, 0u);
    EXPECT_EQ(std::count(memory.begin(), memory.begin() + kGuard, std::byte{0}), kGuard);
    EXPECT_EQ(std::count(memory.end() - kGuard, memory.end(), std::byte{0}), kGuard);
  }
  // Until the owner has ended its part, too: this process uses the memory of both.
  void settle() {
    for (int i = 0; i < 20'000 && owner.statistics().open_served_batches > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  BatchStatus wait(const Result<BatchId>& batch) {
    EXPECT_TRUE(batch) << batch.error().message;
    if (!batch) return {};
    const BatchStatus status = *other.wait(*batch, kLong);
    settle();
    return status;
  }

  static constexpr std::ptrdiff_t kGuard = 4096;
  static constexpr std::size_t kBytes = 8 << 20;
  base::Rng rng{5};
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes + 2 * kGuard);
  std::byte* const segment_memory = memory.data() + kGuard;
  TransferEndpoint owner = open_endpoint("owner", {GetParam()});
  TransferEndpoint other = open_endpoint("other", {});
  Segment segment;
};

const std::vector<TransferDescriptor> kFirstMegabyte = {{{0, {}, 1 << 20}, {0, {}, 1 << 20}}};

TEST_P(Endpoints, ReadsAndWritesMoveTheBytesOfTheirDescriptors) {
  EXPECT_EQ(segment.bytes, kBytes);
  EXPECT_EQ(segment.peer, "owner");
  EXPECT_EQ(segment.access, SegmentAccess::kReadWrite);
  std::vector<std::byte> local(1 << 20);
  for (int turn = 0; turn < 40; ++turn) {
    for (auto* bytes : {&local, &memory}) {
      const std::size_t first = bytes == &memory ? kGuard : 0;
      for (std::size_t i = first; i < first + (1 << 20); ++i)
        (*bytes)[i] = static_cast<std::byte>(rng.next());
    }
    // Each descriptor has a part of both memories of its own.
    std::vector<TransferDescriptor> descriptors(turn == 0 ? kMostDescriptors
                                                          : 1 + rng.below(kMostDescriptors));
    const std::uint64_t room = local.size() / descriptors.size();
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      const std::uint64_t total = 1 + rng.below(std::min<std::uint64_t>(room, 6000));
      descriptors[i] = {any_places(total, i * room, room, rng),
                        any_places(total, i * room, room, rng)};
    }
    const bool is_write = rng.chance(0.5);
    std::vector<std::byte> expected_local = local;
    std::vector<std::byte> expected_memory = memory;
    for (const TransferDescriptor& d : descriptors) {
      const auto mine = places(d.local), theirs = places(d.remote);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (is_write) {
          expected_memory[kGuard + theirs[i]] = local[mine[i]];
        } else {
          expected_local[mine[i]] = segment_memory[theirs[i]];
        }
      }
    }
    const Result<BatchId> batch = is_write ? other.write(segment.id, local, descriptors)
                                           : other.read(segment.id, local, descriptors);
    const BatchStatus status = wait(batch);
    ASSERT_EQ(status.state, BatchState::kDone) << status.error.message;
    ASSERT_TRUE(local == expected_local) << "turn " << turn;
    ASSERT_TRUE(memory == expected_memory) << "turn " << turn;
    other.release(*batch);
    EXPECT_FALSE(other.status(*batch).ok());
  }
}

TEST_P(Endpoints, ManyBatchesAreInFlightAtATime) {
  const auto source = random_bytes(kBytes, rng);
  std::copy(source.begin(), source.end(), segment_memory);
  std::vector<std::byte> local(kBytes);
  std::vector<BatchId> all;
  for (std::uint64_t i = 0; i < 512; ++i) {
    const StridedBytes part{i * (kBytes / 512), {}, kBytes / 512};
    all.push_back(*other.read(segment.id, local, std::vector<TransferDescriptor>{{part, part}}));
  }
  for (const BatchId batch : all) EXPECT_EQ(other.wait(batch, kLong)->state, BatchState::kDone);
  EXPECT_TRUE(local == source);
  EXPECT_EQ(other.statistics().done_batches, 512u);
}

TEST_P(Endpoints, ANoticeComesAfterTheBytesOfItsBatch) {
  std::vector<std::byte> local(1 << 20, std::byte{7});
  ASSERT_EQ(
      wait(other.write(segment.id, local, kFirstMegabyte, {.notice = "layer 3 is there"})).state,
      BatchState::kDone);
  std::vector<Notice> notices = owner.notices(kLong);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].peer, "other");
  EXPECT_EQ(notices[0].text, "layer 3 is there");
  EXPECT_EQ(std::count(segment_memory, segment_memory + (1 << 20), std::byte{7}), 1 << 20);
  EXPECT_TRUE(owner.notices().empty());
  // The other way.
  ASSERT_TRUE(owner.notify("other", "thanks").ok());
  notices = other.notices(kLong);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].text, "thanks");
  EXPECT_EQ(owner.notify("stranger", "x").error().code, Code::kNotFound);
  EXPECT_EQ(owner.notify("other", std::string(kMostNoticeBytes + 1, 'x')).error().code,
            Code::kInvalidArgument);
}

TEST_P(Endpoints, ACancelledBatchIsOverOnBothSides) {
  const auto source = random_bytes(kBytes, rng);
  for (const bool is_write : {false, true}) {
    std::copy(source.begin(), source.end(), segment_memory);
    std::vector<std::byte> local(kBytes);
    const std::vector<TransferDescriptor> all = {{{0, {}, kBytes}, {0, {}, kBytes}}};
    const BatchId batch =
        *(is_write ? other.write(segment.id, local, all) : other.read(segment.id, local, all));
    other.cancel(batch);
    // On one machine the owner may copy a slice of it still, which does not count.
    const bool is_used_again = !is_write || GetParam() != std::string("auto");
    if (is_used_again) std::fill(local.begin(), local.end(), std::byte{0x77});
    const BatchStatus status = *other.status(batch);
    if (status.state == BatchState::kFailed) {
      EXPECT_EQ(status.error.code, Code::kCancelled);
    }
    // Another batch goes through the same connection: what was on its way has come.
    std::vector<std::byte> small(1 << 20);
    ASSERT_EQ(wait(other.read(segment.id, small, kFirstMegabyte)).state, BatchState::kDone);
    if (is_used_again) {
      EXPECT_EQ(std::count(local.begin(), local.end(), std::byte{0x77}),
                static_cast<std::ptrdiff_t>(kBytes));
    }
    if (is_write) {
      // Nothing of what the memory has been used for since.
      EXPECT_EQ(std::search_n(segment_memory, segment_memory + kBytes, 64, std::byte{0x77}),
                segment_memory + kBytes);
    }
  }
}

TEST_P(Endpoints, UnregisteredMemoryIsNotTouched) {
  std::vector<std::byte> local(kBytes, std::byte{0x33});
  const std::vector<TransferDescriptor> all = {{{0, {}, kBytes}, {0, {}, kBytes}}};
  const BatchId batch = *other.write(segment.id, local, all);
  ASSERT_TRUE(owner.unregister_memory("kv").ok());
  std::fill(segment_memory, segment_memory + kBytes, std::byte{0x44});
  const BatchStatus status = *other.wait(batch, kLong);
  if (status.state == BatchState::kFailed) {
    EXPECT_EQ(status.error.code, Code::kStale);
  }
  const BatchStatus later = wait(other.read(segment.id, local, kFirstMegabyte));
  EXPECT_EQ(later.state, BatchState::kFailed);
  EXPECT_EQ(later.error.code, Code::kStale);
  EXPECT_EQ(std::count(segment_memory, segment_memory + kBytes, std::byte{0x44}),
            static_cast<std::ptrdiff_t>(kBytes));
  EXPECT_EQ(owner.unregister_memory("kv").error().code, Code::kNotFound);
  // The same name again is another segment.
  ASSERT_TRUE(owner.register_memory("kv", memory, SegmentAccess::kRead).ok());
  EXPECT_EQ(wait(other.read(segment.id, local, kFirstMegabyte)).error.code, Code::kStale);
  EXPECT_TRUE(other.open({"owner", owner.addresses()}, "kv", kLong).ok());
}

TEST_P(Endpoints, BadInputIsOneClearError) {
  std::vector<std::byte> local(1000);
  const auto error = [&](std::vector<TransferDescriptor> descriptors, bool is_write = false) {
    const Result<BatchId> batch = is_write ? other.write(segment.id, local, descriptors)
                                           : other.read(segment.id, local, descriptors);
    EXPECT_FALSE(batch.ok());
    return batch ? std::string() : std::string(batch.error().message);
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(error({}), "0 descriptors; expected 1 to 64");
  has(error(std::vector<TransferDescriptor>(65, {{0, {}, 1}, {0, {}, 1}})), "65 descriptors");
  has(error({{{0, {}, 0}, {0, {}, 1}}}), "descriptor 0, local: runs of 0 bytes");
  has(error({{{0, {}, 2}, {0, {}, 1}}}), "descriptor 0 has 2 local and 1 remote bytes");
  has(error({{{999, {}, 2}, {0, {}, 2}}}), "bytes 999 to 1001 of the local memory; it has 1000");
  has(error({{{0, {}, 2}, {kBytes - 1, {}, 2}}}), "of segment \"kv\"; it has 8388608 bytes");
  has(error({{{0, {}, 4}, {0, {{2, kBytes, {}}}, 2}}}, true), "of segment \"kv\"");
  has(error({{{0, {}, 4}, {0, {{2, 0, {0, kBytes - 1}}}, 2}}}, true), "of segment \"kv\"");
  has(error({{{0, {}, 4}, {~std::uint64_t{0}, {}, 4}}}), "63 bits");
  has(error({{{0, {}, 4}, {0, {{2, ~std::uint64_t{0} >> 1, {}}}, 2}}}), "63 bits");
  has(error({{{0, {{3, 0, {1, 2}}}, 1}, {0, {}, 3}}}), "a loop of 3 steps has 2 offsets");
  has(error({{{0, {{0, 1, {}}}, 1}, {0, {}, 1}}}), "0 steps");
  std::vector<StridedLoop> seven(7, {1, 1, {}});
  has(error({{{0, seven, 1}, {0, {}, 1}}}), "7 axes");
  const auto message = [](const auto& result) {
    EXPECT_FALSE(result.ok());
    return std::string(result.ok() ? "" : result.error().message);
  };
  has(message(other.open({"owner", owner.addresses()}, "vk", kLong)), "has no segment \"vk\"");
  has(message(other.open({"owner", owner.addresses()}, "", kLong)), "expected 1 to 256");
  has(message(open_endpoint("third", {}).open({"renwo", owner.addresses()}, "kv", kLong)),
      "engine owner answers; expected renwo");
  has(message(other.open({"x", {"tcp:127.0.0.1:1"}}, "kv", kLong)), "127.0.0.1:1");
  has(message(other.open({"x", {"http://x"}}, "kv", kLong)), "no transport");
  has(message(owner.register_memory("kv", memory, SegmentAccess::kRead)), "registered already");
  has(message(owner.register_memory("", memory, SegmentAccess::kRead)), "expected 1 to 256");
  has(message(owner.register_memory("none", {}, SegmentAccess::kRead)), "0 bytes");
  has(message(owner.register_memory("odd", memory, static_cast<SegmentAccess>(4))), "access 4");
  has(message(other.read(SegmentId{999}, local, kFirstMegabyte)), "of the local memory");
  local.resize(1 << 20);
  has(message(other.read(SegmentId{999}, local, kFirstMegabyte)), "no such segment");
  has(message(TransferEndpoint::open({.name = ""})), "name has 0 bytes");
}

TEST_P(Endpoints, TheAccessOfASegmentIsKept) {
  std::vector<std::byte> own(1 << 20, std::byte{1}), local(1 << 20, std::byte{2});
  ASSERT_TRUE(owner.register_memory("read", own, SegmentAccess::kRead).ok());
  std::vector<std::byte> box(1 << 20);
  ASSERT_TRUE(owner.register_memory("write", box, SegmentAccess::kWrite).ok());
  const Segment read = *other.open({"owner", owner.addresses()}, "read", kLong);
  const Segment write = *other.open({"owner", owner.addresses()}, "write", kLong);
  EXPECT_EQ(other.write(read.id, local, kFirstMegabyte).error().code, Code::kPermission);
  EXPECT_EQ(other.read(write.id, local, kFirstMegabyte).error().code, Code::kPermission);
  EXPECT_EQ(wait(other.write(write.id, local, kFirstMegabyte)).state, BatchState::kDone);
  EXPECT_TRUE(box == local);
  EXPECT_EQ(wait(other.read(read.id, local, kFirstMegabyte)).state, BatchState::kDone);
  EXPECT_TRUE(own == local);
}

TEST_P(Endpoints, ASegmentOfARestartedOwnerIsOpenedAgain) {
  std::vector<std::byte> local(1 << 20);
  const std::string address = owner.addresses().front();
  { const TransferEndpoint gone = std::move(owner); }
  owner = open_endpoint("owner", {address});
  ASSERT_TRUE(owner.register_memory("kv", memory, SegmentAccess::kRead).ok());
  Result<Segment> again = other.open({"owner", {address}}, "kv", kLong);
  // The end of the old connection may be noticed only now.
  for (int i = 0; i < 100 && !again; ++i) again = other.open({"owner", {address}}, "kv", kLong);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(other.read(segment.id, local, kFirstMegabyte).error().code, Code::kNotFound);
  EXPECT_EQ(wait(other.read(again->id, local, kFirstMegabyte)).state, BatchState::kDone);
}

TEST_P(Endpoints, APeerWithoutANameIsConnectedOnce) {
  const Segment first = *other.open({"", owner.addresses()}, "kv", kLong);
  const Segment second = *other.open({"", owner.addresses()}, "kv", kLong);
  EXPECT_EQ(second.peer, "owner");
  std::vector<std::byte> local(1 << 20);
  EXPECT_EQ(wait(other.read(second.id, local, kFirstMegabyte)).state, BatchState::kDone);
  other.close(first.id);
  EXPECT_EQ(other.read(first.id, local, kFirstMegabyte).error().code, Code::kNotFound);
  EXPECT_EQ(wait(other.read(second.id, local, kFirstMegabyte)).state, BatchState::kDone);
}

TEST_P(Endpoints, AnEndpointOpensItsOwnSegments) {
  std::vector<std::byte> local(1 << 20, std::byte{9});
  const Result<Segment> own = owner.open({"owner", owner.addresses()}, "kv", kLong);
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(owner.wait(*owner.write(own->id, local, kFirstMegabyte), kLong)->state,
            BatchState::kDone);
  EXPECT_TRUE(std::equal(local.begin(), local.end(), segment_memory));
  std::fill(local.begin(), local.end(), std::byte{0});
  EXPECT_EQ(owner.wait(*owner.read(own->id, local, kFirstMegabyte), kLong)->state,
            BatchState::kDone);
  EXPECT_TRUE(std::equal(local.begin(), local.end(), segment_memory));
}

TEST_P(Endpoints, AClosedOwnerTouchesNothingAndItsAddressIsFree) {
  std::vector<std::byte> local(kBytes, std::byte{0x33});
  const std::vector<TransferDescriptor> all = {{{0, {}, kBytes}, {0, {}, kBytes}}};
  std::thread reader([&] { EXPECT_TRUE(owner.notices(~std::uint64_t{0}).empty()); });
  const std::string address = owner.addresses().front();
  const BatchId batch = *other.write(segment.id, local, all);
  ASSERT_TRUE(other.wait(batch, kLong, 1).ok());
  owner.close();
  std::fill(segment_memory, segment_memory + kBytes, std::byte{0x44});
  reader.join();
  EXPECT_NE(other.wait(batch, kLong)->state, BatchState::kRunning);
  TransferEndpoint next = open_endpoint("owner", {address});
  ASSERT_TRUE(next.register_memory("next", memory, SegmentAccess::kRead).ok());
  Result<Segment> again = other.open({"owner", {address}}, "next", kLong);
  // The end of the old connection may be noticed only now.
  for (int i = 0; i < 100 && !again; ++i) again = other.open({"owner", {address}}, "next", kLong);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(wait(other.read(again->id, local, kFirstMegabyte)).state, BatchState::kDone);
  EXPECT_EQ(std::count(segment_memory, segment_memory + kBytes, std::byte{0x44}),
            static_cast<std::ptrdiff_t>(kBytes));
}

TEST_P(Endpoints, NothingComesIntoTheMemoryOfAClosedReader) {
  std::vector<std::byte> large(64 << 20, std::byte{0x33}), local(large.size());
  ASSERT_TRUE(owner.register_memory("large", large, SegmentAccess::kRead).ok());
  const Segment of_large = *other.open({"owner", owner.addresses()}, "large", kLong);
  const StridedBytes all{0, {}, large.size()};
  const BatchId batch =
      *other.read(of_large.id, local, std::vector<TransferDescriptor>{{all, all}});
  std::thread waits([&] { EXPECT_NE(other.wait(batch)->state, BatchState::kRunning); });
  ASSERT_TRUE(other.wait(batch, kLong, 1).ok());
  other.close();
  std::fill(local.begin(), local.end(), std::byte{0x77});
  waits.join();
  settle();
  EXPECT_EQ(std::count(local.begin(), local.end(), std::byte{0x77}),
            static_cast<std::ptrdiff_t>(local.size()));
}

INSTANTIATE_TEST_SUITE_P(Segments, Endpoints, ::testing::Values("auto", "tcp:127.0.0.1:0"),
                         [](const auto& named) {
                           return std::string(named.param) == "auto" ? "Machine" : "Tcp";
                         });

// --- Two processes -------------------------------------------------------------------------------------

class TwoProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::size_t kBytes = 4 << 20;
  TwoProcesses() {
    void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    memory = {static_cast<std::byte*>(at), kBytes};
    int ends[2];
    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    here = os::FileDescriptor(ends[0]);
    os::FileDescriptor there(ends[1]);
    Result<os::Child> started = os::Child::start([&] {
      here.close();
      Result<TransferEndpoint> owner =
          TransferEndpoint::open({.name = "owner", .listen = {GetParam()}});
      if (!owner || !owner->register_memory("kv", memory, SegmentAccess::kReadWrite)) return 1;
      const std::string& own = owner->addresses().front();
      if (send(there.get(), own.data(), own.size(), MSG_NOSIGNAL) < 0) return 1;
      // Until the test ends.
      char byte;
      static_cast<void>(recv(there.get(), &byte, 1, 0));
      return 0;
    });
    EXPECT_TRUE(started) << started.error().message;
    child.emplace(*std::move(started));
    there.close();
    char text[256];
    const ssize_t count = recv(here.get(), text, sizeof text, 0);
    EXPECT_GT(count, 0);
    address.assign(text, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    other.emplace(open_endpoint("other", {}));
    Result<Segment> opened = other->open({"owner", {address}}, "kv", kLong);
    EXPECT_TRUE(opened) << opened.error().message;
    segment = *opened;
  }
  ~TwoProcesses() override {
    here.close();
    if (child) static_cast<void>(child->wait());
    other.reset();
    munmap(memory.data(), memory.size());
  }

  // Returns when all threads of the owner have stopped.
  void stop() {
    child->send(SIGSTOP);
    siginfo_t what;
    EXPECT_EQ(0, waitid(P_PID, static_cast<id_t>(child->pid()), &what, WSTOPPED | WNOWAIT));
  }

  base::Rng rng{9};
  std::span<std::byte> memory;
  os::FileDescriptor here;
  std::optional<os::Child> child;
  std::string address;
  std::optional<TransferEndpoint> other;
  Segment segment;
};

const std::vector<TransferDescriptor> kEverySecondPage = {
    {{0, {}, 2 << 20}, {0, {{512, 8192, {}}}, 4096}}};

TEST_P(TwoProcesses, ReadWhatTheOtherOneHasWritten) {
  const auto source = random_bytes(2 << 20, rng);
  const BatchId write = *other->write(segment.id, source, kEverySecondPage);
  ASSERT_EQ(other->wait(write, kLong)->state, BatchState::kDone);
  for (std::size_t page = 0; page < 512; ++page) {
    ASSERT_EQ(0, std::memcmp(&memory[page * 8192], &source[page * 4096], 4096)) << page;
    ASSERT_EQ(std::count(&memory[page * 8192 + 4096], &memory[page * 8192] + 8192, std::byte{0}),
              4096);
  }
  std::vector<std::byte> back(2 << 20);
  const BatchId read = *other->read(segment.id, back, kEverySecondPage);
  ASSERT_EQ(other->wait(read, kLong)->state, BatchState::kDone);
  EXPECT_TRUE(back == source);
}

TEST_P(TwoProcesses, ABatchOfAnOwnerThatHangsEndsAtItsDeadline) {
  std::vector<std::byte> local(2 << 20, std::byte{5});
  stop();
  const BatchId write =
      *other->write(segment.id, local, kEverySecondPage, {.deadline_ns = kSecond / 5});
  const BatchId read =
      *other->read(segment.id, local, kEverySecondPage, {.deadline_ns = kSecond / 5});
  for (const BatchId batch : {write, read}) {
    const BatchStatus status = *other->wait(batch, kLong);
    EXPECT_EQ(status.state, BatchState::kFailed);
    EXPECT_EQ(status.error.code, Code::kTimeout) << status.error.message;
  }
  EXPECT_EQ(other->open({"owner", {address}}, "kv", kSecond / 5).error().code, Code::kTimeout);
  child->send(SIGCONT);
  const BatchId again = *other->read(segment.id, local, kEverySecondPage);
  const BatchStatus status = *other->wait(again, kLong);
  ASSERT_EQ(status.state, BatchState::kDone) << status.error.message;
  // What the owner has found when it went on: a cancelled write.
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0}),
            static_cast<std::ptrdiff_t>(kBytes));
}

TEST_P(TwoProcesses, ABatchOfAnOwnerThatDiesFails) {
  std::vector<std::byte> local(2 << 20);
  stop();
  const BatchId write = *other->write(segment.id, local, kEverySecondPage);
  const BatchId read = *other->read(segment.id, local, kEverySecondPage);
  child->send(SIGKILL);
  for (const BatchId batch : {write, read}) {
    const BatchStatus status = *other->wait(batch, kLong);
    EXPECT_EQ(status.state, BatchState::kFailed);
    EXPECT_EQ(status.error.code, Code::kIo) << status.error.message;
  }
  EXPECT_EQ(other->read(segment.id, local, kEverySecondPage).error().code, Code::kNotFound);
}

TEST_P(TwoProcesses, CloseEndsWhatOtherThreadsWaitFor) {
  std::vector<std::byte> local(2 << 20);
  stop();
  const BatchId write = *other->write(segment.id, local, kEverySecondPage);
  const BatchId read = *other->read(segment.id, local, kEverySecondPage);
  const auto is_cancelled = [](const Result<BatchStatus>& status) {
    ASSERT_TRUE(status.ok());
    EXPECT_EQ(status->state, BatchState::kFailed);
    EXPECT_EQ(status->error.code, Code::kCancelled) << status->error.message;
  };
  const auto is_closed = [](const Error& error) {
    EXPECT_NE(std::string(error.message).find("endpoint other"), std::string::npos);
    EXPECT_NE(std::string(error.message).find("was closed"), std::string::npos) << error.message;
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { is_cancelled(other->wait(write)); });
  threads.emplace_back([&] { is_cancelled(other->wait(read, ~std::uint64_t{0}, 1)); });
  threads.emplace_back([&] { EXPECT_TRUE(other->notices(~std::uint64_t{0}).empty()); });
  threads.emplace_back([&] {
    is_closed(other->open({"owner", {address}}, "kv", ~std::uint64_t{0}).error());
  });
  // A new connection, whose hello is not answered.
  threads.emplace_back([&] {
    is_closed(other->open({"third", {address}}, "kv", ~std::uint64_t{0}).error());
  });
  for (int i = 0; i < 2; ++i) threads.emplace_back([&] { other->close(); });
  for (std::thread& thread : threads) thread.join();

  is_cancelled(other->status(write));
  EXPECT_EQ(other->statistics().open_batches, 0u);
  const auto refuses = [&](const auto& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, Code::kInvalidArgument);
    is_closed(result.error());
  };
  refuses(other->read(segment.id, local, kEverySecondPage));
  refuses(other->write(segment.id, local, kEverySecondPage));
  refuses(other->open({"owner", {address}}, "kv", kLong));
  refuses(other->register_memory("x", local, SegmentAccess::kRead));
  refuses(other->unregister_memory("x"));
  refuses(other->notify("owner", "x"));
  other->cancel(read);
  other->release(read);
  other->close(segment.id);
  other->close();
  EXPECT_EQ(other->status(read).error().code, Code::kNotFound);
  child->send(SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(Segments, TwoProcesses, ::testing::Values("auto", "tcp:127.0.0.1:0"),
                         [](const auto& named) {
                           return std::string(named.param) == "auto" ? "Machine" : "Tcp";
                         });

}  // namespace
}  // namespace cachalot
