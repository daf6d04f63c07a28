// A report: settings, one row per measurement (`link` names the packets' path), verdict; as a table or as JSON with the same content.
#pragma once
#include <span>

#include "bench/comm/station.h"

namespace gradcast {

struct Column {
    const char *key, *title;   // in the JSON row; in the table's head
    double scale;              // divides the JSON's number in the table
    int decimals, width;
};

void columns_print(std::span<const Column> columns);
void row_print(std::span<const Column> columns, const nlohmann::json& row);

class BenchReport {
public:
    /// Only the first rank prints.
    BenchReport(const Bench& bench, std::span<const Column> columns, std::string title)
        : bench_(bench), columns_(columns), title_(std::move(title)) {}
    /// A setting shown in the header; before the first row.
    void set(const char* key, nlohmann::json value) { report_[key] = std::move(value); }
    void row(nlohmann::json row);
    /// A sentence below the rows, with its content as JSON.
    void note(const char* key, nlohmann::json value, const std::string& text);
    void close(bool exact, const char* right, const char* wrong);

private:
    void head();
    const Bench& bench_;
    std::span<const Column> columns_;
    std::string title_, link_;   // link_: of the last row
    nlohmann::json report_ = nlohmann::json::object();
    bool begun_ = false;
};

}   // namespace gradcast
