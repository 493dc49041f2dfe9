// A client of the keeper that only takes blocks and gives them back: what pool::Client does in the
// background, here as a stream of its own for `bench rpc`.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "measure.h"
#include "pool/pool.h"
#include "rpc/channel.h"

namespace cachalot::apps::bench {

class GrantStream final : private rpc::AnswerSink {
 public:
  // Attaches as the pool's last client slot, which nothing else may use.
  // @errors kTimeout: no keeper answers
  static Result<std::unique_ptr<GrantStream>> attach(const pool::Pool& pool);

  // Has `blocks` granted and given back, `batch` a request (at most 64), several in flight.
  Status run(std::uint64_t blocks, std::uint32_t batch, RateMeter& rate);

 private:
  GrantStream(const pool::Access& access, std::uint32_t slot);
  Status greet();
  void ask(std::uint32_t batch);
  void give_back(const rpc::Answer& answer);
  void on_answer(const rpc::Answer& answer) override;

  const pool::Access& access_;
  std::uint32_t slot_;
  base::SteadyClock clock_;
  rpc::Doorbell doorbell_;
  rpc::HostWaiter waiter_;
  rpc::Channel channel_;
  std::uint64_t granted_ = 0;
  std::uint32_t under_way_ = 0;  // batches
  bool was_refused_ = false;
};

}  // namespace cachalot::apps::bench
