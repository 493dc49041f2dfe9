#include "storage/redis/node.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>

#include "base/clock.h"
#include "storage/redis/resolve.h"

namespace cachalot::storage {

std::string RedisAddress::text() const {
  if (!path.empty()) return path;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<RedisAddress> RedisAddress::parse(std::string_view text) {
  RedisAddress address;
  std::string_view port;
  if (text.starts_with('[') && text.find(']') != std::string_view::npos) {
    const std::size_t end = text.find(']');
    address.host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else {
    const std::size_t colon = text.rfind(':');
    address.host = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon);
  }
  bool is_right = !address.host.empty() && address.host.size() < 256;
  if (!port.empty()) {
    const char* const end = port.data() + port.size();
    const auto [stop, failed] = std::from_chars(port.data() + 1, end, address.port);
    is_right =
        is_right && port[0] == ':' && failed == std::errc() && stop == end && address.port != 0;
  }
  if (is_right) return address;
  return Error::make(Code::kInvalidArgument, "redis address \"%.80s\": expected HOST[:PORT]",
                     std::string(text).c_str());
}

Result<std::string> read_password(const std::string& path) {
  constexpr std::size_t kMost = 4096;
  std::ifstream file(path);
  if (!file) return Error::from_errno(errno, "redis password file %.120s", path.c_str());
  std::string line(kMost + 1, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(std::min(line.find('\n'), static_cast<std::size_t>(file.gcount())));
  if (line.ends_with('\r')) line.pop_back();
  if (!line.empty() && line.size() <= kMost) return line;
  return Error::make(Code::kInvalidArgument,
                     "redis password file %.120s: its first line has %zu bytes, expected 1 to %zu",
                     path.c_str(), line.size(), kMost);
}

// A password that was changed since is in the file.
Result<RedisLogin> RedisNode::login() const {
  RedisLogin login = login_;
  if (!login.password_file.empty()) {
    CACHALOT_TRY_ASSIGN(login.password, read_password(login.password_file));
  }
  return login;
}

Result<std::unique_ptr<RedisConnection>> RedisNode::connect(std::uint64_t deadline_ns) {
  CACHALOT_TRY_ASSIGN(const RedisLogin login, this->login());
  if (!address_.path.empty()) return RedisConnection::start({.path = address_.path}, login);
  std::string numeric;
  {
    const std::lock_guard lock(mutex_);
    numeric = numeric_;
  }
  if (numeric.empty()) {
    CACHALOT_TRY_ASSIGN(numeric, resolve_host(address_.host, deadline_ns));
    const std::lock_guard lock(mutex_);
    numeric_ = numeric;
  }
  return RedisConnection::start({{}, numeric, address_.port, address_.host}, login);
}

Result<std::unique_ptr<RedisConnection>> RedisNode::take(std::uint64_t deadline_ns) {
  {
    std::unique_lock lock(mutex_);
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::chrono::nanoseconds left(deadline_ns > now_ns ? deadline_ns - now_ns : 0);
    if (!is_free_.wait_for(lock, left, [&] { return in_use_ < most_connections_; })) {
      return Error::make(Code::kTimeout, "redis %.80s: all %u connections are in use",
                         text_.c_str(), most_connections_);
    }
    ++in_use_;
    if (!idle_.empty()) {
      std::unique_ptr<RedisConnection> connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  Result<std::unique_ptr<RedisConnection>> made = connect(deadline_ns);
  if (!made) leave();
  return made;
}

void RedisNode::leave() {
  const std::lock_guard lock(mutex_);
  --in_use_;
  numeric_.clear();  // the name may have another address by now
  is_free_.notify_one();
}

void RedisNode::give_back(std::unique_ptr<RedisConnection> connection, bool is_clean) {
  std::vector<std::unique_ptr<RedisConnection>> closed;  // outside of the lock
  const std::lock_guard lock(mutex_);
  --in_use_;
  if (is_clean) {
    idle_.push_back(std::move(connection));
  } else {
    closed.swap(idle_);
    numeric_.clear();
  }
  is_free_.notify_one();
}

}  // namespace cachalot::storage
