// Barriers in shared memory and bulk transfers: what an instruction asks of the block's asynchronous proxy.
#include "ptx/block.h"
#include "ptx/operations.h"

namespace cachalot::ptx {
namespace {

void init(Thread& thread, const Instruction& i) {
  thread.block.stop_looking_for_races();
  thread.block.bulk.init(thread.number, thread.address(i, 0),
                         thread.get<std::uint32_t>(i.operand[2]));
}
template <bool kExpects>
void arrive(Thread& thread, const Instruction& i) {
  const std::uint32_t bytes = kExpects ? thread.get<std::uint32_t>(i.operand[3]) : 0;
  thread.block.bulk.arrive(thread.address(i, 1), bytes);
}
void try_wait(Thread& thread, const Instruction& i) {
  const bool over =
      thread.block.bulk.try_wait(thread.address(i, 1), thread.get<std::uint32_t>(i.operand[3]));
  thread.set<bool>(i.operand[0], over);
  if (!over) return thread.block.waited_in_vain(thread);
  thread.failed_waits = 0;
}
void fence(Thread& thread, const Instruction& i) {
  thread.block.bulk.fence(thread.number, static_cast<Fenced>(i.detail.mode));
}
void load(Thread& thread, const Instruction& i) {
  thread.block.bulk.load(thread.number, thread.address(i, 0), thread.address(i, 2),
                         thread.get<std::uint32_t>(i.operand[4]), thread.address(i, 5));
}
void store(Thread& thread, const Instruction& i) {
  thread.block.bulk.store(thread.number, thread.address(i, 0), thread.address(i, 2),
                          thread.get<std::uint32_t>(i.operand[4]));
}
void commit(Thread& thread, const Instruction&) {
  thread.block.bulk.commit(thread.number);
}
template <bool kReadsOnly>
void wait(Thread& thread, const Instruction& i) {
  thread.block.bulk.wait(thread.number, thread.get<std::uint32_t>(i.operand[0]), kReadsOnly);
}

Detail mode(Fenced fenced) {
  Detail detail;
  detail.mode = static_cast<std::uint8_t>(fenced);
  return detail;
}

}  // namespace

void add_bulk(Table& table) {
  for (const char* const space : {"shared", "shared::cta"}) {
    const std::string tail = std::string(".") + space + ".b64";
    table.add("mbarrier.init" + tail, "m s32", init);
    // The state that it gives is left alone: waiting by it is not here.
    table.add("mbarrier.arrive" + tail, "_ m", arrive<false>);
    table.add("mbarrier.arrive.expect_tx" + tail, "_ m s32", arrive<true>);
    table.add("mbarrier.try_wait.parity" + tail, "d1 m s32", try_wait);
    table.add("mbarrier.test_wait.parity" + tail, "d1 m s32", try_wait);
  }
  table.add("fence.proxy.async", "", fence, mode(Fenced::kAll));
  table.add("fence.proxy.async.shared::cta", "", fence, mode(Fenced::kShared));
  table.add("fence.proxy.async.global", "", fence, mode(Fenced::kGlobal));
  for (const char* const space : {"shared::cluster", "shared::cta"}) {
    table.add(std::string("cp.async.bulk.") + space + ".global.mbarrier::complete_tx::bytes",
              "m m s32 m", load);
  }
  table.add("cp.async.bulk.global.shared::cta.bulk_group", "m m s32", store);
  table.add("cp.async.bulk.commit_group", "", commit);
  table.add("cp.async.bulk.wait_group", "s32", wait<false>);
  table.add("cp.async.bulk.wait_group.read", "s32", wait<true>);
}

std::vector<Operation> find_operations(const std::string& mnemonic) {
  static const Table kTable = [] {
    Table table;
    for (const auto add : {add_integers, add_bits, add_comparisons, add_conversions, add_floats,
                           add_control, add_atomics, add_bulk}) {
      add(table);
    }
    return table;
  }();
  std::vector<Operation> found = kTable.find(mnemonic);
  return found.empty() ? find_access(mnemonic) : found;
}

}  // namespace cachalot::ptx
