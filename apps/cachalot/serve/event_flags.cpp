#include "event_flags.h"

#include <chrono>
#include <filesystem>
#include <utility>

namespace cachalot::apps {
namespace {

double unix_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void EventFlags::add(Command& app) {
  Flag* const live =
      app.add_option("--kv-events", endpoints_.live,
                     "publish each block that is stored and removed, in vLLM's format over ZeroMQ: "
                     "tcp://ADDRESS:PORT, tcp://*:PORT or ipc://PATH; connect:ENDPOINT connects to "
                     "a subscriber that is bound there")
          ->type_name("ENDPOINT");
  app.add_option("--kv-events-replay", endpoints_.replay,
                 "answer subscribers that come late or have missed events")
      ->type_name("ENDPOINT")
      ->needs(live);
}

Status EventFlags::open(bool is_successor) {
  if (endpoints_.live.empty()) return {};
  CACHALOT_TRY(endpoints_.check());
  if (is_successor) return {};
  CACHALOT_TRY_ASSIGN(sockets_, events::Sockets::open(endpoints_));
  return {};
}

std::string EventFlags::describe() const {
  if (endpoints_.live.empty()) return "";
  const std::string live = " events=" + known().live;
  return known().replay.empty() ? live : live + " replay=" + known().replay;
}

nlohmann::json EventFlags::describe_json() const {
  if (endpoints_.live.empty()) return nullptr;
  return {{"live", known().live}, {"replay", known().replay}};
}

std::unique_ptr<events::Publisher> EventFlags::start(const pool::Pool& pool, pool::Keeper& keeper) {
  if (endpoints_.live.empty()) return nullptr;
  events::FeedOptions options;
  options.pool_name = std::filesystem::path(pool.paths()[0]).filename().string();
  options.epoch = keeper.epoch();
  options.unix_s = unix_s;
  return std::make_unique<events::Publisher>(
      keeper, pool.access(), endpoints_, std::exchange(sockets_, std::nullopt), std::move(options));
}

}  // namespace cachalot::apps
