#include "storage/redis/connection.h"

#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/clock.h"

namespace cachalot::storage {
namespace {

constexpr std::size_t kPiecesPerCall = 64;
constexpr std::size_t kReadBytes = 256 << 10;
// Replies that may be on their way: the server would keep more of them in its memory.
constexpr std::uint64_t kMostAwaitedBytes = 16 << 20;
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kAsking = "*1\r\n$6\r\nASKING\r\n";

void append_word(std::string& text, std::string_view word) {
  text += "$" + std::to_string(word.size()) + "\r\n";
  text += word;
  text += kLineEnd;
}

iovec piece_of(std::string_view text) {
  return {const_cast<char*>(text.data()), text.size()};
}

}  // namespace

bool is_lost(const Status& status) {
  if (status) return false;
  const auto error = static_cast<int>(status.error().os_error);
  return error == ECONNRESET || error == EPIPE || error == ECONNABORTED;
}

bool is_passing(const redisReply& reply) {
  if (reply.type != REDIS_REPLY_ERROR) return false;
  const std::string_view text(reply.str, reply.len);
  constexpr std::string_view kWords[] = {"LOADING ", "BUSY ", "TRYAGAIN ", "CLUSTERDOWN ",
                                         "MASTERDOWN "};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return text.starts_with(word); });
}

Error error_of_reply(const std::string& node, const redisReply& reply) {
  const std::string_view text(reply.str, reply.len);
  Code code = Code::kIo;
  for (const char* const word : {"NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH",
                                 "ERR Client sent AUTH", "ERR invalid password"}) {
    if (text.starts_with(word)) code = Code::kPermission;
  }
  if (text.starts_with("READONLY")) code = Code::kPermission;
  // MISCONF: it cannot save to its disk, and so takes no writes.
  if (text.starts_with("OOM") || text.starts_with("MISCONF")) code = Code::kNoSpace;
  if (text.starts_with("WRONGTYPE")) code = Code::kCorrupt;
  // The database of the URI: more than the server has, or one of a cluster.
  if (text.starts_with("ERR DB index") || text.starts_with("ERR SELECT")) code = Code::kUnsupported;
  if (is_passing(reply)) code = Code::kBusy;
  return Error::make(code, "redis %.80s: %.*s", node.c_str(),
                     static_cast<int>(std::min<std::size_t>(text.size(), 120)), text.data());
}

// --- Commands and connections ----------------------------------------------------------------------

RedisCommand RedisCommand::make(std::initializer_list<std::string_view> words) {
  RedisCommand command;
  command.text = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string_view word : words) append_word(command.text, word);
  return command;
}

// The count of words is the text's second character: commands have less than nine.
void RedisCommand::add_value(std::string_view start, std::span<const Bytes> pieces) {
  ++text[1];
  std::uint64_t bytes = start.size();
  for (const Bytes& piece : pieces) bytes += piece.size();
  text += "$" + std::to_string(bytes) + "\r\n";
  text += start;
  body = pieces;
}

Result<std::unique_ptr<RedisConnection>> RedisConnection::start(const Place& place,
                                                                const RedisLogin& login) {
  redisContext* const context = place.path.empty()
                                    ? redisConnectNonBlock(place.numeric.c_str(), place.port)
                                    : redisConnectUnixNonBlock(place.path.c_str());
  if (context == nullptr) return Error::make(Code::kNoSpace, "redis: no memory for a connection");
  std::unique_ptr<RedisConnection> connection(new RedisConnection(context));
  if (context->err != 0) {
    return Error::make(Code::kIo, "redis %.100s: connect: %.100s",
                       place.path.empty() ? place.numeric.c_str() : place.path.c_str(),
                       context->errstr);
  }
  // A batch ends with a short write; the server must not wait for more.
  const int on = 1;
  (void)::setsockopt(context->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (login.tls != nullptr) {
    CACHALOT_TRY_ASSIGN(connection->tls_, login.tls->open(context->fd, place.host));
  }
  if (!login.password.empty() && login.user.empty()) {
    connection->greet({"AUTH", login.password});
  } else if (!login.password.empty()) {
    connection->greet({"AUTH", login.user, login.password});
  }
  if (login.database != 0) connection->greet({"SELECT", std::to_string(login.database)});
  return connection;
}

void RedisConnection::greet(std::initializer_list<std::string_view> words) {
  greeting_ += RedisCommand::make(words).text;
  ++greetings_;
}

RedisConnection::~RedisConnection() {
  tls_.reset();
  redisFree(context_);
}
int RedisConnection::fd() const {
  return context_->fd;
}

Result<std::size_t> RedisConnection::write(std::span<iovec> pieces) {
  if (tls_ != nullptr) return tls_->write(pieces);
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  // Full, or not connected yet.
  if (errno == EAGAIN || errno == EINPROGRESS || errno == ENOTCONN || errno == EINTR)
    return std::size_t{0};
  return Error::from_errno(errno, "send");
}

Result<std::size_t> RedisConnection::read(std::span<char> room) {
  if (tls_ != nullptr) return tls_->read(room);
  const ssize_t got = ::recv(fd(), room.data(), room.size(), MSG_DONTWAIT);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOTCONN)) return std::size_t{0};
  if (got < 0) return Error::from_errno(errno, "receive");
  Error closed = Error::make(Code::kIo, "the server closed the connection");
  closed.os_error = ECONNRESET;
  return closed;
}

const char* RedisConnection::awaited() const {
  return tls_ == nullptr || tls_->is_open()
             ? "answer"
             : "end of the TLS handshake (does the server speak TLS there?)";
}

short RedisConnection::events(bool wants_to_write) const {
  if (tls_ != nullptr) return tls_->events(wants_to_write);
  return static_cast<short>(POLLIN | (wants_to_write ? POLLOUT : 0));
}

// --- Pipelines -------------------------------------------------------------------------------------

RedisPipeline::RedisPipeline(RedisConnection& connection, std::vector<RedisCommand*> commands,
                             std::string node)
    : connection_(connection),
      commands_(std::move(commands)),
      node_(std::move(node)),
      greetings_left_(connection.greetings_) {
  scan_ = ReplyScan(next_bounds());
}

void RedisPipeline::fail(const Status& why) {
  status_ = why;
  for (RedisCommand* const command : unanswered()) command->status = why;
}

// A failure of the connection.
void RedisPipeline::fail_at(const Error& why) {
  Error error = Error::make(why.code, "redis %.80s: %s", node_.c_str(), why.message);
  error.os_error = why.os_error;
  fail(error);
}

bool RedisPipeline::may_send() const {
  return sending_ < commands_.size() && (awaited_bytes_ == 0 || awaited_bytes_ < kMostAwaitedBytes);
}

// What is still to be sent, beginning with the command that is being sent.
std::size_t RedisPipeline::gather(std::span<iovec> pieces) const {
  std::size_t count = 0;
  std::uint64_t skip = sent_bytes_, awaited = awaited_bytes_;
  const auto add = [&](iovec piece) {
    const std::size_t skipped = std::min<std::uint64_t>(skip, piece.iov_len);
    skip -= skipped;
    if (piece.iov_len == skipped || count == pieces.size()) return;
    pieces[count++] = {static_cast<char*>(piece.iov_base) + skipped, piece.iov_len - skipped};
  };
  for (std::size_t i = sending_; i < commands_.size() && count < pieces.size(); ++i) {
    if (awaited != 0 && awaited >= kMostAwaitedBytes) break;
    const RedisCommand& command = *commands_[i];
    if (i == 0) add(piece_of(connection_.greeting_));
    if (command.is_asking) add(piece_of(kAsking));
    add(piece_of(command.text));
    for (const Bytes& piece : command.body)
      add({const_cast<std::byte*>(piece.data()), piece.size()});
    if (!command.body.empty()) add(piece_of(kLineEnd));
    awaited += command.reply_bytes;
  }
  return count;
}

void RedisPipeline::advance(std::uint64_t bytes) {
  sent_bytes_ += bytes;
  while (sending_ < commands_.size()) {
    const RedisCommand& command = *commands_[sending_];
    std::uint64_t whole = command.text.size() + (command.body.empty() ? 0 : kLineEnd.size()) +
                          (command.is_asking ? kAsking.size() : 0) +
                          (sending_ == 0 ? connection_.greeting_.size() : 0);
    for (const Bytes& piece : command.body) whole += piece.size();
    if (sent_bytes_ < whole) return;
    sent_bytes_ -= whole;
    awaited_bytes_ += command.reply_bytes;
    ++sending_;
  }
}

void RedisPipeline::send() {
  while (!is_done() && may_send()) {
    std::array<iovec, kPiecesPerCall> pieces;
    const std::size_t count = gather(pieces);
    const Result<std::size_t> sent = connection_.write(std::span(pieces).first(count));
    if (!sent) return fail_at(sent.error());
    if (*sent == 0) return;
    advance(*sent);
  }
}

void RedisPipeline::take_reply(const redisReply& reply) {
  if (greetings_left_ != 0) {
    --greetings_left_;
    if (reply.type == REDIS_REPLY_ERROR) fail(error_of_reply(node_, reply));
    return;
  }
  RedisCommand& command = *commands_[received_];
  if (command.is_asking && !skips_asking_) {
    skips_asking_ = true;
    return;
  }
  skips_asking_ = false;
  awaited_bytes_ -= std::min(awaited_bytes_, command.reply_bytes);
  ++received_;
  command.status = {};
  command.take(reply);
}

// The next reply is to a command, or to what comes before one.
ReplyBounds RedisPipeline::next_bounds() const {
  const bool is_of_command = greetings_left_ == 0 && received_ < commands_.size();
  return is_of_command ? commands_[received_]->most : ReplyBounds{};
}

void RedisPipeline::take_bytes(std::string_view bytes) {
  redisReader* const reader = connection_.context_->reader;
  while (status_ && !bytes.empty()) {
    std::size_t taken = 0;
    const ReplyScan::Found found = scan_.take(bytes, taken);
    if (found == ReplyScan::Found::kBeyond) {
      return fail(Error::make(
          Code::kIo, "redis %.80s: a reply that is none, or larger than what was asked for",
          node_.c_str()));
    }
    (void)redisReaderFeed(reader, bytes.data(), taken);
    bytes.remove_prefix(taken);
    if (found == ReplyScan::Found::kMore) return;
    void* parsed = nullptr;
    if (redisReaderGetReply(reader, &parsed) != REDIS_OK || parsed == nullptr) {
      return fail(Error::make(Code::kIo, "redis %.80s: %.120s", node_.c_str(), reader->errstr));
    }
    const std::unique_ptr<void, void (*)(void*)> reply(parsed, freeReplyObject);
    const auto& answer = *static_cast<const redisReply*>(parsed);
    // Also what a server says that has too many clients.
    const bool is_awaited =
        greetings_left_ != 0 ? sending_ + sent_bytes_ != 0 : received_ < sending_;
    if (!is_awaited && answer.type == REDIS_REPLY_ERROR) return fail(error_of_reply(node_, answer));
    if (!is_awaited) {
      return fail(Error::make(Code::kIo, "redis %.80s: a reply to nothing", node_.c_str()));
    }
    take_reply(answer);
    scan_ = ReplyScan(next_bounds());
  }
}

// Once: a server that sends without an end is looked at between two reads, as the deadline is.
void RedisPipeline::receive() {
  thread_local std::vector<char> buffer(kReadBytes);
  const Result<std::size_t> got = connection_.read(buffer);
  if (!got) return fail_at(got.error());
  take_bytes({buffer.data(), *got});
}

void RedisPipeline::run(std::span<RedisPipeline> pipelines, std::uint64_t deadline_ns,
                        const CancelSignal& cancel) {
  std::vector<pollfd> waits;
  std::vector<RedisPipeline*> open;
  while (true) {
    waits.clear();
    open.clear();
    for (RedisPipeline& pipeline : pipelines) {
      pipeline.send();
      if (pipeline.is_done()) continue;
      const short events = pipeline.connection_.events(pipeline.may_send());
      waits.push_back({pipeline.connection_.fd(), events, 0});
      open.push_back(&pipeline);
    }
    if (open.empty()) break;
    waits.push_back({cancel.fd(), POLLIN, 0});
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    const timespec left{static_cast<time_t>(left_ns / 1'000'000'000),
                        static_cast<long>(left_ns % 1'000'000'000)};
    const int ready = left_ns == 0 ? 0 : ::ppoll(waits.data(), waits.size(), &left, nullptr);
    if (ready == 0 || cancel.is_raised()) {
      for (RedisPipeline* const pipeline : open) {
        const char* const node = pipeline->node_.c_str();
        pipeline->fail(
            cancel.is_raised()
                ? Error::make(Code::kCancelled, "redis %.80s: the call was cancelled", node)
                : Error::make(Code::kTimeout, "redis %.80s: no %s before the deadline", node,
                              pipeline->connection_.awaited()));
      }
      break;
    }
    for (std::size_t i = 0; ready > 0 && i < open.size(); ++i) {
      if ((waits[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) open[i]->receive();
    }
  }
  for (RedisPipeline& pipeline : pipelines) {
    if (!pipeline.status_) continue;
    pipeline.connection_.is_reused_ = true;
    pipeline.connection_.greeting_.clear();
    pipeline.connection_.greetings_ = 0;
  }
}

}  // namespace cachalot::storage
