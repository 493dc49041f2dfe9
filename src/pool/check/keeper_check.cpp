#include "pool/check/keeper_check.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "pool/check/lines.h"
#include "pool/format/context_lines.h"

namespace cachalot::pool {
namespace {

void check_pair(const Access& access, std::uint32_t area, FaultLog& log) {
  KeeperLine line{}, copy{};
  const std::uint64_t at = access.layout.keeper_line(area);
  const std::uint64_t copy_at = access.layout.keeper_line_copy(area);
  const LineState line_is = look_at_line(access, at, line);
  const LineState copy_is = look_at_line(access, copy_at, copy);
  const std::string of = " of keeper area " + std::to_string(area);
  if (line_is == LineState::kDamaged)
    log.add({FaultKind::kKeeperLine, 0, at, kNoBlock, kNoBlock, "the line" + of + ": wrong CRC"});
  if (copy_is == LineState::kDamaged) {
    log.add({FaultKind::kKeeperLine, 0, copy_at, kNoBlock, kNoBlock,
             "the line's copy" + of + ": wrong CRC"});
  }
  if (line_is == LineState::kGood && copy_is == LineState::kBlank) {
    log.add({FaultKind::kKeeperLine, 0, copy_at, kNoBlock, kNoBlock,
             "the line's copy" + of + " is blank"});
  }
  const bool differ = line_is == LineState::kGood && copy_is == LineState::kGood &&
                      std::memcmp(&line, &copy, offsetof(KeeperLine, crc)) != 0;
  if (differ || (line_is == LineState::kBlank && copy_is == LineState::kGood)) {
    log.add({FaultKind::kKeeperPair, 0, at, kNoBlock, kNoBlock,
             "the line" + of + " and its copy differ"});
  }
  for (const auto& [state, one, offset] :
       {std::tuple{line_is, line, at}, std::tuple{copy_is, copy, copy_at}}) {
    if (state != LineState::kGood || one.min_epoch <= one.epoch) continue;
    log.add({FaultKind::kKeeperContent, 0, offset, kNoBlock, kNoBlock,
             "the line" + of + ": min_epoch " + std::to_string(one.min_epoch) + " is above epoch " +
                 std::to_string(one.epoch)});
  }
}

std::vector<bool> check_namespaces(const Access& access, const Predecessor& predecessor,
                                   FaultLog& log) {
  std::vector<bool> is_known(kMaxNamespaces, false);
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> id_of;
  for (std::uint32_t i = 0; i < kMaxNamespaces; ++i) {
    NamespaceLine line{};
    const std::uint64_t at = access.layout.namespace_line(predecessor.area, i);
    const LineState state = look_at_line(access, at, line);
    const std::string of = "namespace " + std::to_string(i + 1);
    if (state == LineState::kDamaged)
      log.add({FaultKind::kNamespaceLine, 0, at, kNoBlock, kNoBlock, of + ": wrong CRC"});
    if (state != LineState::kGood || line.epoch != predecessor.epoch) continue;
    const bool has_digest = (line.digest_low | line.digest_high) != 0;
    if (line.id != i + 1 || !has_digest) {
      log.add({FaultKind::kNamespaceLine, 0, at, kNoBlock, kNoBlock,
               of + (has_digest ? ": the line is of id " + std::to_string(line.id)
                                : ": its digest is zero")});
      continue;
    }
    is_known[i] = true;
    const auto [first, is_new] = id_of.try_emplace({line.digest_low, line.digest_high}, i + 1);
    if (!is_new) {
      log.add({FaultKind::kNamespaceTwice, 0, at, kNoBlock, kNoBlock,
               of + " has the digest of namespace " + std::to_string(first->second)});
    }
    for (std::uint32_t part = 0; part < kNameLines; ++part) {
      NameLine name{};
      const std::uint64_t name_at = access.layout.name_line(predecessor.area, i, part);
      if (access.region.read_as(name_at, name) && name.epoch == predecessor.epoch) continue;
      log.add({FaultKind::kNameLine, 0, name_at, kNoBlock, kNoBlock,
               "part " + std::to_string(part) + " of the name of " + of + " cannot be read"});
    }
  }
  return is_known;
}

}  // namespace

void check_keeper_lines(const Access& access, const Predecessor& predecessor, FaultLog& log) {
  std::map<std::uint32_t, std::uint32_t> area_of;
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
    check_pair(access, area, log);
    KeeperLine line{};
    const std::uint64_t at = access.layout.keeper_line(area);
    if (!access.region.read_as(at, line) || line.epoch == 0) continue;
    const auto [first, is_new] = area_of.try_emplace(line.epoch, area);
    if (is_new) continue;
    log.add({FaultKind::kKeeperContent, 0, at, kNoBlock, kNoBlock,
             "keeper areas " + std::to_string(first->second) + " and " + std::to_string(area) +
                 " have one epoch, " + std::to_string(line.epoch)});
  }
  if (!predecessor.is_lost) return;
  log.add({FaultKind::kKeeperLost, 0, access.layout.keeper_areas, kNoBlock, kNoBlock,
           "both lines of the last keeper are lost: epoch " +
               std::to_string(predecessor.highest_epoch - 1) +
               " was in use, and no keeper's line says so"});
}

std::vector<bool> check_keeper_area(const Access& access, const Predecessor& predecessor,
                                    FaultLog& log) {
  const std::uint32_t area = predecessor.area;
  std::vector<bool> is_known = check_namespaces(access, predecessor, log);
  for_each_report_line(access, area, [&](std::uint64_t at) {
    if (!is_damaged(access, at)) return;
    log.add({FaultKind::kReportLine, 0, at, kNoBlock, kNoBlock, "a keeper's report: wrong CRC"});
  });
  for (std::uint32_t client = 0; client < access.geometry.clients; ++client) {
    const std::uint64_t at = access.layout.view_line(area, client);
    if (!is_damaged(access, at)) continue;
    log.add({FaultKind::kViewLine, 0, at, kNoBlock, client,
             "the keeper's line of client slot " + std::to_string(client) + ": wrong CRC"});
  }
  for (std::uint32_t index = 0, room = context_room(access); index < room; ++index) {
    const std::uint64_t at = access.layout.context_line(area, index, access.geometry.clients);
    if (!is_damaged(access, at)) continue;
    log.add({FaultKind::kContextLine, 0, at, kNoBlock, kNoBlock,
             "line " + std::to_string(index) + " of the contexts: wrong CRC"});
  }
  return is_known;
}

}  // namespace cachalot::pool
