// All nodes that may be members of a job, by NodeId.  It grows while the job runs; what is in it stays as it is.
#pragma once
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "runtime/core/types.h"

namespace gradcast {

/// A copy is the same roster.  Any thread.
class Roster {
public:
    Roster() = default;
    Roster(std::initializer_list<Member> members) : list_(std::make_shared<List>(members)) {}
    Roster(const std::vector<Member>& members) : list_(std::make_shared<List>(members)) {}
    void push_back(Member member) {
        std::lock_guard lock(list_->mutex);
        list_->members.push_back(std::move(member));
    }
    size_t size() const {
        std::lock_guard lock(list_->mutex);
        return list_->members.size();
    }
    /// Valid as long as the roster.
    const Member& operator[](size_t node) const {
        std::lock_guard lock(list_->mutex);
        return list_->members[node];
    }
    /// size(): nobody is named so.
    size_t find(std::string_view name) const {
        std::lock_guard lock(list_->mutex);
        size_t node = 0;
        while (node < list_->members.size() && list_->members[node].name != name) ++node;
        return node;
    }

private:
    struct List {
        List() = default;
        template <typename Members>
        explicit List(const Members& from) : members(from.begin(), from.end()) {}
        mutable std::mutex mutex;
        std::deque<Member> members;   // which do not move
    };
    std::shared_ptr<List> list_ = std::make_shared<List>();
};

}   // namespace gradcast
