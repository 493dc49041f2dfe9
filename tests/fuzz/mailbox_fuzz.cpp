// Requests with right seals and hostile values, to a keeper that another client uses, too.
//
// A message: operation, lines that the head states, count, following lines that are sent, what is put right (bits),
// then the bytes of its payloads. The keeper stays valid, and the other client reads its own bytes or nothing.
#include "input.h"
#include "pool_image.h"

namespace cachalot::pool {
namespace {

enum Bits : std::uint32_t {
  kLines = 1,      // the head states the lines that are sent
  kNamespace = 2,  // the payload begins with a namespace that is open
  kUse = 4,        // … and goes on with a block that the client holds
  kItems = 8,      // each following line commits such a block
  kCount = 16,     // count: the following lines
};

class Attacker {
 public:
  explicit Attacker(TestPool& pool) : client_(pool, 1) {
    space_ = client_.open_namespace();
    held_ = client_.grant(8);
  }

  void send(fuzz::Input& input) {
    rpc::RequestHead head{};
    head.op = input.take<std::uint8_t>() % 16;
    head.lines = input.take<std::uint8_t>();
    head.count = input.take<std::uint16_t>();
    std::vector<rpc::FollowingLine> following(input.below(40));
    const std::uint32_t bits = input.take<std::uint8_t>();
    input.change(head.payload);
    if ((bits & kLines) != 0) head.lines = static_cast<std::uint8_t>(1 + following.size());
    if ((bits & kCount) != 0) head.count = static_cast<std::uint16_t>(following.size());
    if ((bits & kNamespace) != 0) std::memcpy(head.payload, &space_, sizeof space_);
    if ((bits & kUse) != 0) {
      const BlockUse use = next_use();
      std::memcpy(head.payload + 4, &use, sizeof use);
    }
    for (rpc::FollowingLine& line : following) {
      input.change(line.payload);
      if ((bits & kItems) == 0) continue;
      CommitItem item = RawClient::item(500 + line.payload[0], next_use(), 1 + line.payload[1]);
      item.flags = line.payload[2];
      rpc::store_payload(line.payload, item);
    }
    client_.ask(head, following);
    for (int i = 0; i < 64 && client_.take().came; ++i) {
    }
  }

 private:
  BlockUse next_use() { return held_.empty() ? BlockUse{} : held_[next_++ % held_.size()]; }

  RawClient client_;
  std::uint32_t space_ = 0;
  std::vector<BlockUse> held_;
  std::size_t next_ = 0;
};

void try_input(fuzz::Input input) {
  static PoolImage image;
  TestPool& pool = image.pool();
  image.restore();
  pool.start_keeper();
  const auto victim = pool.attach(0, PoolImage::options());
  CACHALOT_CHECK(pool.read(*victim, 0, kImageBlocks) == kImageBlocks);
  {
    Attacker attacker(pool);
    for (int messages = 0; messages < 64 && !input.is_empty(); ++messages) attacker.send(input);
  }
  CACHALOT_CHECK(pool.keeper().is_valid());
  pool.read(*victim, 0, kImageBlocks);
  const auto bytes = payload_of(100, pool.size_of(100));
  const PutItem item{hash_of(100), bytes};
  Verdict verdict{};
  // The attacker may hold all blocks, or have stopped the keeper.
  (void)victim->put(nullptr, {&item, 1}, {&verdict, 1});
  pool.read(*victim, 100, 1);
  CACHALOT_CHECK(pool.keeper().is_valid());
  (void)victim->detach();
}

}  // namespace
}  // namespace cachalot::pool

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  cachalot::pool::try_input({data, bytes});
  return 0;
}
