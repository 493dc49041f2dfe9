// Encryption of a link over TCP: TLS 1.3 between processes that have the cluster's key, without certificates.
//
// 1. A stream opens only after both sides have proved in the handshake that they have the key (RFC 8446 §2.2, mode
//    psk_dhe_ke). A recorded handshake proves nothing: each one begins with fresh random numbers of both sides.
// 2. Each connection, and each way of it, has keys of its own, which follow from an exchange of X25519: a key file that is
//    stolen later does not open what was recorded before. The sender goes on to a new key each 256 MiB.
// 3. What read() gives is what the other side wrote, from its beginning on and in its order. A byte that was changed,
//    left out, repeated or put elsewhere ends the stream.
// 4. write() encrypts into a buffer of the stream: after it returns the caller's memory is not read.
//
// @threads the progress thread
// @cost    an AES-128-GCM pass and a copy on either side: decision 0031 has the figures
// @source  RFC 9257: external keys of TLS, and how not to use them. Its reflection ("Selfie"): hellos say names
#pragma once

#include <cachalot/result.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "os/secret_key.h"

namespace cachalot::transfer {

class TlsContext;

inline constexpr std::uint64_t kMostRecordBytes = 16384 + 256 + 5;

class TlsStream {
 public:
  // @param context  outlives it
  // @param fd       a connected socket, which does not block; stays the caller's
  TlsStream(TlsContext& context, int fd, bool is_called);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Goes on with the handshake. @return 0: it is done; EAGAIN: the socket is to be waited for; another errno: it has failed
  int open();
  bool is_open() const;

  // As readv(). @return -1 with EBADMSG: error() says why
  ssize_t read(std::span<const iovec> parts);
  // As writev(); takes bytes until the buffer is full, and sends what the socket takes.
  ssize_t write(std::span<const iovec> parts);
  // Bytes wait in the buffer for the socket.
  bool is_full() const;
  // Sends them. @return 0: none is left; EAGAIN; another errno
  int flush();

  // Why open() or read() has failed. @param address  of the peer
  Error error(const std::string& address, int error) const;
  // All that came, also bytes of which read() gives none yet.
  std::uint64_t received_bytes() const;
  std::uint64_t buffer_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What all streams of a process have in common.
class TlsContext {
 public:
  // @errors kInternal: OpenSSL has no TLS 1.3
  static Result<std::unique_ptr<TlsContext>> make(const os::SecretKey& cluster_key);
  ~TlsContext();

  struct State;
  State& state() { return *state_; }

 private:
  explicit TlsContext(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cachalot::transfer
