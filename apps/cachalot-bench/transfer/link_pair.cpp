#include "link_pair.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "measure.h"
#include "os/child.h"
#include "os/file_descriptor.h"

namespace cachalot::apps::bench {
namespace {

using namespace transfer;

constexpr std::uint64_t kMostSeconds = 120;  // of one run

// One side of the pair.
class Side : public LinkEvents {
 public:
  explicit Side(const LinkLoad& load) : load_(load) {
    const std::uint64_t piece = load.piece_bytes == 0 ? load.payload_bytes : load.piece_bytes;
    const std::uint64_t pieces = load.payload_bytes / piece;
    bytes_ = pieces * piece;
    memory_.resize(pieces * piece * 2);
    memory = std::make_shared<PayloadMemory>(*Strided::make(
        reinterpret_cast<std::uintptr_t>(memory_.data()), {{pieces, piece * 2}}, piece));
  }

  // @return false: it has failed
  bool run(Transport& transport) {
    const std::uint64_t end_ns = now_ns() + kMostSeconds * 1'000'000'000;
    while (!is_done && !failure) {
      // What has come may have been the last.
      if (transport.progress() || is_done || failure || !transport.arm()) continue;
      pollfd ready{transport.fd(), POLLIN, 0};
      poll(&ready, 1, 1000);
      if (now_ns() > end_ns)
        failure = Error::make(Code::kTimeout, "no end after %llu s",
                              static_cast<unsigned long long>(kMostSeconds));
    }
    return !failure;
  }

  void on_frame(Link&, Frame frame) override {
    BodyReader body(frame.body);
    acknowledged = body.word();
    is_done = acknowledged == load_.payloads;
    if (link != nullptr) link->wants_payload();
  }
  IncomingPayload on_payload(Link&, const Frame&, std::uint64_t) override {
    return {memory, 0, load_.has_checksum, false};
  }
  void on_payload_end(Link& from, const Frame&, std::uint64_t, PayloadEnd end) override {
    if (end != PayloadEnd::kWritten) failure = Error::make(Code::kCorrupt, "a payload was lost");
    ++arrived;
    from.send({FrameType::kTaken, BodyWriter().word(arrived).take()});
    is_last_sent = arrived == load_.payloads;
  }
  bool next_payload(Link&, OutgoingPayload& payload) override {
    if (!is_sender || sent == load_.payloads || sent - acknowledged >= load_.outstanding)
      return false;
    ++sent;
    payload.frame = {FrameType::kChunk, BodyWriter().word(sent).take()};
    payload.memory = memory;
    payload.offset = 0;
    payload.bytes = bytes_;
    payload.has_checksum = load_.has_checksum;
    return true;
  }
  void on_payload_sent(Link&, const OutgoingPayload&) override {}
  void on_closed(Link&, const Error& error) override {
    if (is_last_sent) {
      is_done = true;  // the sender has heard all
    } else if (!is_done) {
      failure = error;
    }
  }

  std::shared_ptr<PayloadMemory> memory;
  Link* link = nullptr;
  bool is_sender = false, is_done = false, is_last_sent = false;
  std::uint64_t sent = 0, acknowledged = 0, arrived = 0;
  std::optional<Error> failure;
  std::uint64_t bytes() const { return bytes_; }

 private:
  const LinkLoad load_;
  std::uint64_t bytes_ = 0;
  std::vector<std::byte> memory_;
};

int receive(const OpenTransport& open, const std::string& listen, const LinkLoad& load, int to) {
  std::array<char, 256> text{};
  auto transport = open();
  Side side(load);
  if (transport) {
    (*transport)->start(side, [](Link&) {});
    const Result<std::string> address = (*transport)->listen(listen);
    if (address) {
      std::strncpy(text.data(), address->c_str(), text.size() - 1);
    } else {
      std::snprintf(text.data(), text.size(), "!%s", address.error().message);
    }
  } else {
    std::snprintf(text.data(), text.size(), "!%s", transport.error().message);
  }
  if (write(to, text.data(), text.size()) != static_cast<ssize_t>(text.size()) || text[0] == '!')
    return 1;
  return side.run(**transport) ? 0 : 1;
}

}  // namespace

Result<double> run_link_pair(const OpenTransport& open, const std::string& listen,
                             const LinkLoad& load) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return Error::from_errno(errno, "pipe");
  os::FileDescriptor from(ends[0]), to(ends[1]);
  CACHALOT_TRY_ASSIGN(os::Child child, os::Child::start([&] {
                        from.close();
                        return receive(open, listen, load, to.get());
                      }));
  to.close();
  std::array<char, 256> text{};
  if (read(from.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return Error::make(Code::kIo, "the receiver has ended at its start");
  if (text[0] == '!') return Error::make(Code::kIo, "%s", text.data() + 1);
  CACHALOT_TRY_ASSIGN(std::unique_ptr<Transport> transport, open());
  Side side(load);
  side.is_sender = true;
  transport->start(side, [](Link&) {});
  const std::uint64_t start_ns = now_ns();
  CACHALOT_TRY_ASSIGN(side.link, transport->connect(text.data()));
  if (!side.run(*transport)) return *side.failure;
  const double seconds = static_cast<double>(now_ns() - start_ns) / 1e9;
  side.link->close(Error::make(Code::kCancelled, "measured"));
  transport->progress();
  transport.reset();
  CACHALOT_TRY(child.wait());
  return static_cast<double>(load.payloads * side.bytes()) / seconds;
}

}  // namespace cachalot::apps::bench
