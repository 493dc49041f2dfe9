#include "cost.h"

#include <algorithm>
#include <cmath>

#include "values.h"

namespace cachalot::apps {
namespace {

constexpr double kGpusOfServer = 8, kHoursOfYear = 8766;
constexpr std::uint64_t kServersOfSwitch = 16, kNicsOfServer = 4, kAdaptersOfServer = 2;

std::optional<double> per_million(double usd, std::uint64_t tokens) {
  if (tokens == 0) return std::nullopt;
  return usd / (static_cast<double>(tokens) / 1e6);
}

}  // namespace

void add_cost_flags(Command& command, CostFlags& flags) {
  constexpr double kMostUsd = 1e9;
  const auto add = [&](const char* name, double& value, const char* text) {
    command.add_option(name, value, text)
        ->type_name("X")
        ->transform(decimal(0, kMostUsd))
        ->capture_default_str();
  };
  add("--gpu-hour-usd", flags.gpu_hour,
      "price of an hour of one GPU; the default is an assumption");
  command
      .add_option("--network", flags.network,
                  "hardware between the servers: rdma, or cxl (default with a pool)")
      ->type_name("rdma|cxl");
  add("--nic-usd", flags.nic, "rdma: price of a NIC, of which a server of 8 GPUs has 4");
  add("--nic-switch-usd", flags.nic_switch, "rdma: price of a switch, one for 16 servers");
  add("--adapter-usd", flags.adapter, "cxl: price of an adapter, of which a server has 2");
  add("--adapter-switch-usd", flags.adapter_switch, "cxl: price of a switch, one for 16 servers");
  command
      .add_option("--write-off-years", flags.years,
                  "time over which the price of the network is spread")
      ->type_name("X")
      ->transform(decimal(0.01, 100))
      ->capture_default_str();
}

Result<ClusterPrice> price_of(const CostFlags& flags, std::uint64_t instances,
                              double gpus_per_instance, bool shared_pool) {
  ClusterPrice price;
  price.network = flags.network;
  if (price.network.empty()) price.network = shared_pool ? "cxl" : "rdma";
  if (price.network != "rdma" && price.network != "cxl") {
    return Error::make(Code::kInvalidArgument, "--network: \"%.60s\", expected rdma or cxl",
                       price.network.c_str());
  }
  const bool is_cxl = price.network == "cxl";
  price.gpus = static_cast<double>(instances) * gpus_per_instance;
  price.servers = static_cast<std::uint64_t>(std::ceil(price.gpus / kGpusOfServer));
  price.cards = price.servers * (is_cxl ? kAdaptersOfServer : kNicsOfServer);
  price.switches = (price.servers + kServersOfSwitch - 1) / kServersOfSwitch;
  const double network_usd =
      static_cast<double>(price.cards) * (is_cxl ? flags.adapter : flags.nic) +
      static_cast<double>(price.switches) * (is_cxl ? flags.adapter_switch : flags.nic_switch);
  price.gpu_usd_per_hour = price.gpus * flags.gpu_hour;
  price.network_usd_per_hour = network_usd / (flags.years * kHoursOfYear);
  return price;
}

RunCost cost_of(const ClusterPrice& price, const sim::ClusterReport& report) {
  RunCost cost{.price = price, .usd = price.usd_per_hour() * report.sim_s / 3600};
  cost.usd_per_million_tokens = per_million(cost.usd, report.completed_tokens);
  cost.usd_per_million_good_tokens = per_million(cost.usd, report.good_tokens);
  return cost;
}

}  // namespace cachalot::apps
