#include "pool/check/added_check.h"

#include <optional>

#include "pool/expansion/expansion_device.h"
#include "pool/keeper/predecessor.h"

namespace cachalot::pool {
namespace {

// What is wrong with one device.
struct Finding {
  Expansion device;
  std::optional<Error> loss;
  bool has_its_serial = false;
};

std::vector<Finding> look_at(const Access& access, const ExpansionTable& table) {
  std::vector<Finding> all;
  for (const Expansion& device : table.expansions) {
    Finding finding{device, {}, false};
    const auto there = open_named(access, device, os::Access::kReadOnly, os::Owners::kAny);
    if (!there) {
      finding.loss = there.error();
      finding.has_its_serial = has_serial_of(access, device);
    }
    all.push_back(std::move(finding));
  }
  return all;
}

}  // namespace

AddedReport check_added(const Access& access, FaultLog& log) {
  constexpr int kAttempts = 4;  // a keeper that serves may just give a device up
  AddedReport report;
  const std::uint32_t first = access.geometry.devices;
  const Predecessor predecessor = find_predecessor(access);
  if (access.expansions == nullptr || predecessor.epoch == 0) return report;
  std::vector<Finding> found;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto table = read_table(access, predecessor.area, predecessor.epoch);
    if (!table) {
      log.add({FaultKind::kAddedList, 0, access.layout.expansions_line(predecessor.area), kNoBlock,
               kNoBlock, "the keeper's list of added devices: wrong CRC"});
      return report;
    }
    found = look_at(access, *table);
    if (read_table_version(access, predecessor.area, predecessor.epoch) == table->version) break;
  }
  for (std::uint32_t i = 0; i < found.size(); ++i) {
    report.devices.push_back(found[i].device);
    if (!found[i].loss) continue;
    if (found[i].has_its_serial) report.without_header.push_back(found[i].device);
    log.add({found[i].has_its_serial ? FaultKind::kAddedHeader : FaultKind::kAddedDevice, first + i,
             0, kNoBlock, kNoBlock, found[i].loss->message});
  }
  return report;
}

Status mend_added_headers(const Access& access, const AddedReport& report) {
  for (const Expansion& device : report.without_header)
    CACHALOT_TRY(write_expansion_header(access, device));
  return {};
}

void set_device(const Access& access, const AddedReport& report, Fault& fault) {
  if (!access.geometry.growable || fault.device != 0) return;
  std::uint64_t begin = access.geometry.device_bytes;
  for (std::uint32_t i = 0; i < report.devices.size() && fault.offset >= begin; ++i) {
    const std::uint64_t bytes = report.devices[i].bytes;
    if (fault.offset - begin < bytes) {
      fault.device = access.geometry.devices + i;
      fault.offset = fault.offset - begin + memory::kStripeBytes;
      return;
    }
    begin += bytes;
  }
}

}  // namespace cachalot::pool
