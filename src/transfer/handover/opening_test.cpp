// What a rank says, and withstands, while it opens.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "testing/transfer/live_instance.h"
#include "testing/transfer/raw_peer.h"
#include "transfer/engine/engine.h"
#include "transfer/handover/instance.h"
#include "transfer/handover/messages.h"
#include "transfer/link/socket_address.h"

namespace cachalot {
namespace {

using namespace transfer;  // NOLINT

// Four ranks in pairs with two heads each. Other ranks would take it for four ranks with one head each.
TEST(Opening, ARankHasTheHeadsThatItsNumberSays) {
  std::vector<std::byte> tensor(1024);
  TransferOptions options;
  options.instance = "p";
  options.model = "test";
  options.geometry = {.layers = 1, .kv_heads = 2, .head_dim = 8, .block_tokens = 4};
  options.geometry.tp_rank = 1;
  options.geometry.tp_size = options.shape.tp_size = 4;
  options.geometry.tp_replicas = 2;
  options.cache = {.layout = "vllm_kbnhc", .tensors = {{tensor.data(), tensor.size()}}, .pages = 4};
  const Result<TransferRank> opened = TransferRank::open(options);
  ASSERT_FALSE(opened.ok());
  EXPECT_STREQ(opened.error().message,
               "geometry: a rank of TP 4 with kv_heads 2 and tp_replicas 2; expected 1 and 1 for "
               "a model of 4 heads");
}

// This thread runs for 20 µs at a time, then stands still for a millisecond, wherever it is.
class Halting {
 public:
  Halting() {
    struct sigaction action = {};
    action.sa_handler = [](int) {
      const int error = errno;
      const timespec millisecond{0, 1'000'000};
      nanosleep(&millisecond, nullptr);
      run_on();
      errno = error;
    };
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, &before_);
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR2;
    event._sigev_un._tid = gettid();
    EXPECT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer_), 0);
    run_on();
  }
  ~Halting() {
    timer_delete(timer_);
    sigaction(SIGUSR2, &before_, nullptr);
  }

 private:
  static void run_on() {
    const itimerspec once{{0, 0}, {0, 20'000}};
    timer_settime(timer_, 0, &once, nullptr);
  }
  static inline timer_t timer_ = {};
  struct sigaction before_ = {};
};

// Peers know the address of a rank that starts again.
TEST(Opening, ARankThatIsAskedWhileItOpensAnswers) {
  base::Rng rng(7);
  const std::string address = "unix:@cachalot-opening-" + std::to_string(getpid());
  LiveInstance prefill("p", small_model(), 1, 1, 50, rng, address);
  const std::map<std::string, std::string> facts = {
      {"model", "test"}, {"kv", *model_text(prefill.memory.ranks()[0].geometry, prefill.shape)}};
  const SocketAddress at = *SocketAddress::parse(address);
  for (std::uint64_t round = 1; round <= 30; ++round) {
    prefill.ranks[0].close();
    Code answer = Code::kInternal;
    std::thread peer([&] {
      const std::uint64_t end_ns = base::SteadyClock::read() + kLong;
      os::FileDescriptor fd;
      do {
        fd = os::FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      } while (::connect(fd.get(), at.get(), at.bytes) != 0 && base::SteadyClock::read() < end_ns);
      RawPeer raw(std::move(fd));
      AskMessage ask;
      ask.ask = 1;
      ask.tokens = 50;
      for (const Frame& frame :
           {hello_of("d/0", round, facts), reads_of(),
            Frame{FrameType::kMessage, BodyWriter().bytes(encode(ask)).take()}})
        raw.send(frame);
      const std::optional<Frame> frame = raw.receive(FrameType::kMessage, 20'000);
      if (!frame) return;
      BodyReader body(frame->body);
      const Result<Message> message = transfer::decode(body.bytes(kMostMessageBytes));
      if (message) answer = std::get<RefusalMessage>(*message).error.code;
    });
    {
      const Halting here;
      prefill.start(0, address);
    }
    peer.join();
    ASSERT_EQ(answer, Code::kNotFound) << "round " << round;
  }
}

}  // namespace
}  // namespace cachalot
