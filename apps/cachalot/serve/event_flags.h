// `cachalot serve --kv-events`: the publisher of a keeper's events.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "flags.h"
#include "node/events/publisher.h"
#include "pool/pool.h"

namespace cachalot::apps {

class EventFlags {
 public:
  void add(Command& app);

  // Before the pool is served: opens the endpoints; or checks them only, for a successor of a keeper that may have them.
  // @errors kInvalidArgument, kBusy, kPermission
  Status open(bool is_successor);
  // Where the events are, for the ready line; empty: there are none.
  std::string describe() const;
  nlohmann::json describe_json() const;
  // Null: no events were asked for.
  std::unique_ptr<events::Publisher> start(const pool::Pool& pool, pool::Keeper& keeper);

 private:
  const events::Endpoints& known() const { return sockets_ ? sockets_->endpoints() : endpoints_; }

  events::Endpoints endpoints_;
  std::optional<events::Sockets> sockets_;
};

}  // namespace cachalot::apps
