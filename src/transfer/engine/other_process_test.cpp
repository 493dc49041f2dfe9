// A push out of the memory of another process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <vector>

#include "base/clock.h"
#include "os/file_descriptor.h"
#include "transfer/engine/engine.h"

namespace cachalot::transfer {
namespace {

constexpr std::size_t kBytes = 1 << 20;

std::uint64_t in(std::uint64_t milliseconds) {
  return base::SteadyClock::read() + milliseconds * 1'000'000;
}

struct Pipe {
  Pipe() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    out = os::FileDescriptor(fds[0]);
    into = os::FileDescriptor(fds[1]);
  }
  void put(std::uint64_t word) const { EXPECT_EQ(write(into.get(), &word, sizeof word), 8); }
  std::uint64_t get() const {
    std::uint64_t word = 0;
    EXPECT_EQ(read(out.get(), &word, sizeof word), 8);
    return word;
  }
  os::FileDescriptor out, into;
};

// The sender: unmaps what it pushes when it is told.
[[noreturn]] void push_and_unmap(const std::string& address, const Pipe& orders,
                                 const Pipe& answers) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  EngineOptions options;
  options.name = "sender";
  const auto sender = *TransferEngine::open(options);
  orders.get();  // the receiver listens
  const PeerId to = *sender->connect({"", 0, {address}}, in(20'000));
  const WindowKey window{orders.get()};
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const PushId push = *sender->push(to, window, Strided::flat(memory, kBytes), in(20'000));
  orders.get();  // the receiver copies next
  sender->release(push);
  munmap(memory, kBytes);
  answers.put(1);
  orders.get();
  _exit(0);
}

struct Receiver : EngineEvents {
  void on_peer(PeerId peer, const PeerInfo&) override {
    from = static_cast<std::uint64_t>(peer);
    from.notify_all();
  }
  std::atomic<std::uint64_t> from = 0;
};

TEST(OtherProcess, ThatTakesItsMemoryBackAndUnmapsItIsNamedAsTheReason) {
  const std::string address = "unix:@cachalot-other-process-" + std::to_string(getpid());
  const Pipe orders, answers;
  const pid_t child = fork();
  if (child == 0) push_and_unmap(address, orders, answers);
  Receiver events;
  EngineOptions options;
  options.name = "receiver";
  options.listen = {address};
  options.damage = [&](WindowKey, std::uint64_t, std::uint64_t) {
    orders.put(1);
    answers.get();
    return false;
  };
  const auto receiver = *TransferEngine::open(options, &events);
  orders.put(1);
  events.from.wait(0);
  std::vector<std::byte> target(kBytes);
  const WindowKey window = *receiver->open_window(PeerId{events.from.load()},
                                                  Strided::flat(target.data(), kBytes), in(20'000));
  orders.put(static_cast<std::uint64_t>(window));
  const TransferStatus status = *receiver->wait(window, in(30'000));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code, Code::kStale) << status.error.message;
  orders.put(1);
  int how = 0;
  EXPECT_EQ(waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  receiver->close();
}

}  // namespace
}  // namespace cachalot::transfer
