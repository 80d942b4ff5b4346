// SPDX-License-Identifier: Apache-2.0
// odc topo: the distances between devices of this machine or a recorded one, and the route of each memory to another host; in a
// job, the route of each pair of its ranks.
#include "cli/exit.h"
#include "cli/files.h"
#include "cli/json.h"
#include "cli/sysfs.h"
#include "cli/verbs.h"
#include "rank/context.h"
#include "run/launch.h"
#include "topo/job.h"
#include "topo/picture.h"
#include "topo/text.h"

#include <fmt/format.h>
#include <odc/odc.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>

namespace odc_tool {

namespace {

struct TopoOptions {
    std::string xml;
    std::string svg;
    std::string save;
    std::vector<int> pair;  // the pair for --why; empty: all
    bool why = false;
    bool json = false;
};

Reasons reasons_of(const TopoOptions &options) { return options.why ? Reasons::Told : Reasons::Untold; }

void show_machine(const TopoOptions &options) {
    const char *json = nullptr;
    const char *xml = nullptr;
    const odc_status status = odc_get_topology(options.xml.empty() ? nullptr : options.xml.c_str(), &json,
                                               options.save.empty() ? nullptr : &xml);
    if (status != ODC_OK) {
        throw Exit{status == ODC_ERROR_ARGUMENT ? 2 : 1, odc_last_error()};
    }
    if (xml != nullptr) {
        write_file(options.save, xml);
    }
    const Json machine = parse_json(json);
    if (!options.svg.empty()) {
        write_file(options.svg, draw_machine(machine));
    }
    if (options.json) {
        fmt::print("{}\n", lines_text(machine));
    } else {
        print_machine(machine, reasons_of(options));
    }
}

void check_options(const TopoOptions &options) {
    const bool of_machine = !options.xml.empty() || !options.svg.empty() || !options.save.empty();
    if (inside_a_job() && of_machine) {
        throw Exit{2, "--xml, --svg and --save are about one machine; use them outside a job"};
    }
    if (!inside_a_job() && !options.pair.empty()) {
        throw Exit{2, "--why A B is about the ranks of a job; try: odc run -n 2 -- odc topo --why 0 1"};
    }
    if (!options.xml.empty() && !options.save.empty()) {
        throw Exit{2, "--save records this machine, and --xml shows another one; leave one of them out"};
    }
}

}  // namespace

void add_topo(CLI::App &app) {
    auto options = std::make_shared<TopoOptions>();
    CLI::App *verb = app.add_subcommand(
        "topo", "Show the distances between devices, and the route that each rank would use and why");
    verb->add_option(
            "--xml", options->xml,
            "Show a recorded machine (hwloc's XML) instead of this one, as if libfabric had every provider for it")
        ->type_name("FILE");
    verb->add_option("--svg", options->svg, "Also draw the machine into this file")->type_name("FILE");
    verb->add_option("--save", options->save,
                     "Record this machine into this file, as hwloc's XML; it includes addresses")
        ->type_name("FILE");
    CLI::Option *why =
        verb->add_flag("--why", options->why, "Explain why each route is taken, and why the others are not");
    verb->add_option("ranks", options->pair, "In a job, with --why: only the route from rank A to rank B")
        ->expected(2)
        ->type_name("A B")
        ->needs(why);
    verb->add_flag("--json", options->json, "Print JSON");
    verb->footer(
        "Outside a job: a tree of packages, NUMA nodes, GPUs and NICs, the distances between them, and the NIC and\n"
        "provider that memory on each NUMA node or GPU would use to a host like this one. ODC_TRANSPORTS, ODC_INTERFACE\n"
        "and ODC_PROVIDER narrow the choice; with ODC_REQUIRE it shows whether each route meets it. Inside a job (odc run,\n"
        "torchrun, mpirun, Slurm) odc topo joins it as one rank, and rank 0 prints which transport each pair of ranks\n"
        "uses.");
    verb->callback([options] {
        hide_missing_sysfs();
        check_options(*options);
        if (inside_a_job()) {
            show_job({reasons_of(*options), options->pair, options->json ? Form::JsonText : Form::Text});
        } else {
            show_machine(*options);
        }
    });
}

}  // namespace odc_tool
