// Redis servers of a test's process, and questions to them by hiredis alone.
#pragma once

#include <hiredis/hiredis.h>

#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "testing/os/scratch_folder.h"
#include "testing/storage/redis_servers.h"

namespace cachalot::storage {

// Servers of this process, in a folder that goes with it.
class Servers {
 public:
  TestServer& start(const std::vector<std::string>& more = {}) {
    const std::string folder = folder_ + "/" + std::to_string(servers_.size());
    std::filesystem::create_directory(folder);
    Result<TestServer> server = start_redis(folder, more);
    if (!server) throw std::runtime_error(server.error().message);
    servers_.push_back(std::make_unique<TestServer>(*std::move(server)));
    return *servers_.back();
  }
  const std::string& folder() const { return folder_; }
  std::string socket(std::size_t i) const {
    return folder_ + "/" + std::to_string(i) + "/redis.sock";
  }
  std::size_t count() const { return servers_.size(); }
  TestServer& at(std::size_t i) { return *servers_[i]; }

 private:
  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::vector<std::unique_ptr<TestServer>> servers_;
};

// One command. @return the reply as text
inline std::string ask(const TestServer& server, std::initializer_list<std::string> words) {
  redisContext* const context = redisConnect("127.0.0.1", server.port());
  if (context == nullptr || context->err != 0) {
    std::string error = context == nullptr ? "no memory" : context->errstr;
    redisFree(context);
    return error;
  }
  std::vector<const char*> texts;
  std::vector<std::size_t> sizes;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  auto* const reply = static_cast<redisReply*>(
      redisCommandArgv(context, static_cast<int>(texts.size()), texts.data(), sizes.data()));
  std::string text = reply == nullptr ? "no reply" : "";
  if (reply != nullptr && reply->str != nullptr) text.assign(reply->str, reply->len);
  if (reply != nullptr && reply->type == REDIS_REPLY_INTEGER) text = std::to_string(reply->integer);
  if (reply != nullptr) freeReplyObject(reply);
  redisFree(context);
  return text;
}

inline std::string address(const TestServer& server) {
  return "redis://127.0.0.1:" + std::to_string(server.port());
}

}  // namespace cachalot::storage
