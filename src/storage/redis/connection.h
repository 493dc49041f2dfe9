// One connection to a Redis server, and pipelines of commands over several connections at a time.
//
// hiredis connects and parses replies, each of which was found to be within its command's bounds. Commands are written here, so that payloads go from the caller's memory to
// the socket without a copy, and so that every wait ends at the deadline: connecting is a part of the pipeline.
//
// Invariant: a connection over which a pipeline did not complete is never used again.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>
#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/cancel_signal.h"
#include "storage/object.h"
#include "storage/redis/reply_scan.h"
#include "storage/redis/tls.h"

struct redisContext;
struct redisReply;

namespace cachalot::storage {

// A command and what becomes of it.
struct RedisCommand {
  // The words but for a last one that lies in pieces.
  static RedisCommand make(std::initializer_list<std::string_view> words);
  // A last word: `start`, then the pieces, which stay where they are.
  void add_value(std::string_view start, std::span<const Bytes> pieces);

  std::string text = {};             // as it is sent
  std::span<const Bytes> body = {};  // sent after the text, then a line end
  std::uint64_t reply_bytes = 64;    // about
  ReplyBounds most = {};             // a longer reply ends the connection
  std::uint16_t slot = 0;            // of its key, in a cluster
  bool is_asking = false;            // preceded by ASKING
  // Filled by the run: OK if there was a reply; else why there was none.
  Status status = {};
  std::function<void(const redisReply& reply)> take = {};
};

struct RedisLogin {
  std::string user;
  std::string password;       // empty: none is sent
  std::string password_file;  // read for each new connection, in place of `password`; empty: none
  std::uint32_t database = 0;
  std::shared_ptr<const Tls> tls;  // null: none
};

class RedisConnection {
 public:
  // Where to connect to.
  struct Place {
    std::string path = {};     // of a socket; empty: by TCP
    std::string numeric = {};  // the host's address
    std::uint16_t port = 0;
    std::string host = {};  // that its certificate is of
  };
  // Begins to connect.
  static Result<std::unique_ptr<RedisConnection>> start(const Place& place,
                                                        const RedisLogin& login);
  ~RedisConnection();

  int fd() const;
  // As much as goes now; 0: nothing. @errors a lost connection (is_lost()), and those of TlsStream
  Result<std::size_t> write(std::span<iovec> pieces);
  Result<std::size_t> read(std::span<char> room);
  // What to poll for.
  short events(bool wants_to_write) const;
  // What it waits for: "answer".
  const char* awaited() const;
  // Had a complete pipeline before.
  bool is_reused() const { return is_reused_; }

 private:
  friend class RedisPipeline;
  explicit RedisConnection(redisContext* context) : context_(context) {}

  void greet(std::initializer_list<std::string_view> words);

  redisContext* const context_;
  std::unique_ptr<TlsStream> tls_;
  std::string greeting_;    // AUTH and SELECT, to be sent first
  unsigned greetings_ = 0;  // commands of it
  bool is_reused_ = false;
};

// The commands of one connection, on their way.
class RedisPipeline {
 public:
  RedisPipeline(RedisConnection& connection, std::vector<RedisCommand*> commands, std::string node);

  // Runs them until each is complete or has failed. Replies are taken as they come.
  // @return  at about the deadline, or once `cancel` is raised
  static void run(std::span<RedisPipeline> pipelines, std::uint64_t deadline_ns,
                  const CancelSignal& cancel);

  const Status& status() const { return status_; }
  const std::vector<RedisCommand*>& commands() const { return commands_; }
  // Those that have no reply. Their status is the pipeline's.
  std::span<RedisCommand* const> unanswered() const {
    return std::span(commands_).subspan(received_);
  }

 private:
  bool is_done() const { return !status_ || received_ == commands_.size(); }
  bool may_send() const;
  void send();
  std::size_t gather(std::span<iovec> pieces) const;
  void advance(std::uint64_t sent_bytes);
  void receive();
  void take_bytes(std::string_view bytes);
  void take_reply(const redisReply& reply);
  ReplyBounds next_bounds() const;
  void fail(const Status& why);
  void fail_at(const Error& why);

  RedisConnection& connection_;
  std::vector<RedisCommand*> commands_;
  std::string node_;  // for messages
  Status status_;
  std::size_t greetings_left_;       // replies to what was sent before the first command
  std::size_t sending_ = 0;          // the command that is being sent
  std::uint64_t sent_bytes_ = 0;     // of it
  std::uint64_t awaited_bytes_ = 0;  // of replies
  std::size_t received_ = 0;         // commands that have their reply
  bool skips_asking_ = false;        // the next reply is ASKING's
  ReplyScan scan_{ReplyBounds{}};    // of the next reply
};

// Whether the server or the network has reset or closed a connection.
bool is_lost(const Status& status);

// Whether a server that says so may answer otherwise a moment later: it loads its data, a script runs, slots move.
bool is_passing(const redisReply& reply);

// What an error reply means to the caller.
Error error_of_reply(const std::string& node, const redisReply& reply);

}  // namespace cachalot::storage
