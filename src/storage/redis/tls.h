// TLS for connections to Redis: the server's certificate is verified, and its name is the host's.
//
// OpenSSL reads and writes the socket by functions of ours: without signals (SIGPIPE), and also while it connects.
#pragma once

#include <cachalot/result.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct ssl_ctx_st;
struct ssl_st;

namespace cachalot::storage {

// Files in PEM. Empty `ca`: the authorities that the system trusts. Empty `cert`: the client shows none. Empty `key`: it
// is in `cert`.
struct TlsFiles {
  std::string ca, cert, key;
};

// One connection's stream. @threads one at a time
class TlsStream {
 public:
  ~TlsStream();

  // As much of the pieces as goes now; 0: nothing. @errors kIo, kPermission: the certificate of one side is not accepted,
  // kUnsupported: the other side does not speak TLS
  Result<std::size_t> write(std::span<const iovec> pieces);
  // What has come; 0: nothing yet. @errors as above; also the end of the stream, with os_error ECONNRESET
  Result<std::size_t> read(std::span<char> room);
  // Whether both sides have agreed: before that not even the server's name is known to be right.
  bool is_open() const;
  // What to poll for.
  short events(bool wants_to_write) const;

 private:
  friend class Tls;
  TlsStream(ssl_st* ssl, std::string host)
      : ssl_(ssl), host_(std::move(host)), record_(kRecordBytes) {}
  static constexpr std::size_t kRecordBytes = 16 << 10;  // of TLS

  Error error_of(int result) const;

  ssl_st* const ssl_;
  const std::string host_;
  std::vector<char> record_;  // pieces side by side: a record each would be many
  bool write_waits_for_read_ = false, read_waits_for_write_ = false;
};

// What all connections to a server have. @threads any
class Tls {
 public:
  // @errors kInvalidArgument: a file that cannot be read, or has no such thing
  static Result<std::shared_ptr<const Tls>> load(const TlsFiles& files);
  ~Tls();

  // @param fd    stays the caller's, and outlives the stream. @param host  a name or an address
  Result<std::unique_ptr<TlsStream>> open(int fd, const std::string& host) const;

 private:
  explicit Tls(ssl_ctx_st* context) : context_(context) {}

  ssl_ctx_st* const context_;
};

}  // namespace cachalot::storage
