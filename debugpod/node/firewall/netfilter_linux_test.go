package firewall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpu-fault/kubectl-gpu-fault/debugpod/api"
)

const testRun = "xid79-abcdef"

// emptyNetwork returns the packet filter of a network namespace of the test's own. It needs root, as all of a node's
// tests do.
func emptyNetwork(t *testing.T) *netfilter {
	t.Helper()
	type opened struct {
		filter *netfilter
		err    error
	}
	done, over := make(chan opened), make(chan struct{})
	t.Cleanup(func() { close(over) })
	go func() {
		runtime.LockOSThread() // it ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- opened{nil, err}
			return
		}
		filter, err := openNetfilter(fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid()))
		done <- opened{filter, err}
		<-over
	}()
	got := <-done
	if got.err != nil {
		t.Fatalf("a network namespace for the test: %v", got.err)
	}
	t.Cleanup(func() { _ = got.filter.close() })
	return got.filter
}

func built(t *testing.T, filter packetFilter, f api.Firewall) *api.BuiltFirewall {
	t.Helper()
	proof, failure := buildFirewall(testRun, f, filter)
	if failure != nil {
		t.Fatalf("the firewall was not made: %v", failure)
	}
	return proof
}

// TestFirewallInTheKernel: each kind is made in one table, read back in nft's words, and gone without a trace when it
// is removed; and that once more.
func TestFirewallInTheKernel(t *testing.T) {
	t.Parallel()
	for drop, rule := range map[api.Drop]string{
		api.DropRequests:  "tcp dport @" + api.FirewallSet(testRun) + " counter drop",
		api.DropResponses: "tcp sport @" + api.FirewallSet(testRun) + " counter drop",
		api.DropOutgoing:  "tcp dport @" + api.FirewallSet(testRun) + " counter drop",
		api.DropLarge:     "meta length > 576 tcp sport @" + api.FirewallSet(testRun) + " counter drop",
	} {
		t.Run(string(drop), func(t *testing.T) {
			t.Parallel()
			filter := emptyNetwork(t)
			f := api.Firewall{Table: "hardening", Port: 27000, Drop: drop, TTL: time.Hour}
			proof := built(t, filter, f)
			if want := "table inet hardening: chain " + chainOf(f) + ": " + rule + "; " + api.FirewallSet(testRun) +
				" = {27000}"; proof.Rule != want {
				t.Errorf("the proof is %q, not %q", proof.Rule, want)
			}
			if proof.Expires < 59*time.Minute || proof.Expires > time.Hour {
				t.Errorf("the kernel blocks the port for %s, not an hour", proof.Expires)
			}
			if marked, err := filter.marked(); err != nil || marked["hardening"] != (mark{testRun, 27000}) {
				t.Errorf("the table is not found by its mark: %v, %v", marked, err)
			}
			removed, failure := removeFirewall(testRun, api.RemoveFirewall{}, filter)
			if failure != nil || !removed.Removed || removed.Expired || len(removed.Left) > 0 {
				t.Errorf("it was not removed: %+v, %v", removed, failure)
			}
			if table, err := filter.find("hardening"); table != nil || err != nil {
				t.Errorf("the table is still there: %v, %v", table, err)
			}
			removed, failure = removeFirewall(testRun, api.RemoveFirewall{}, filter)
			if failure != nil || removed.Removed {
				t.Errorf("removed again: %+v, %v; it was gone", removed, failure)
			}
		})
	}
}

// awaitEnd waits until the kernel has removed all elements of a table's sets, whose number left returns.
func awaitEnd(t *testing.T, filter packetFilter, name string, left func(*firewallTable) int) {
	t.Helper()
	n := 0
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 20*time.Second, true,
		func(context.Context) (bool, error) {
			table, err := filter.look(name, testRun)
			if err != nil || table == nil {
				return false, fmt.Errorf("read the table: %v, %w", table, err)
			}
			n = left(table)
			return n == 0, nil
		})
	if err != nil {
		t.Fatalf("elements left: %d: %v", n, err)
	}
}

// TestFirewallEndsByItself: the kernel is the dead man. It forgets the port when the time is up, whoever is gone, and
// the rest is removed later.
func TestFirewallEndsByItself(t *testing.T) {
	t.Parallel()
	filter := emptyNetwork(t)
	f := api.Firewall{Table: "hardening", Port: 27000, Drop: api.DropRequests, TTL: time.Second}
	built(t, filter, f)
	awaitEnd(t, filter, f.Table, func(table *firewallTable) int { return len(table.ports) })
	removed, failure := removeFirewall(testRun, api.RemoveFirewall{}, filter)
	if failure != nil || !removed.Removed || !removed.Expired {
		t.Errorf("after its time: %+v, %v; it should be removed, and told as expired", removed, failure)
	}
}

// TestFirewallIsNobodyElses: a table that exists is not touched, nor is another run's; what others put into ours stays,
// without what was ours; and with Overwrite it goes.
func TestFirewallIsNobodyElses(t *testing.T) {
	t.Parallel()
	f := api.Firewall{Table: "hardening", Port: 27000, Drop: api.DropRequests, TTL: time.Hour}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: f.Table}
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}

	t.Run("a table that exists", func(t *testing.T) {
		t.Parallel()
		filter := emptyNetwork(t)
		filter.conn.AddTable(table)
		if err := filter.conn.Flush(); err != nil {
			t.Fatal(err)
		}
		if _, failure := buildFirewall(testRun, f, filter); failure == nil || failure.Code != api.CodeExists {
			t.Errorf("building in a table that exists: %v; want %s", failure, api.CodeExists)
		}
		for _, overwrite := range []bool{false, true} { // the client may have been killed before it heard that
			removed, failure := removeFirewall(testRun, api.RemoveFirewall{Overwrite: overwrite}, filter)
			if failure != nil || removed.Removed || removed.Table != "" {
				t.Errorf("removing it with overwrite %v: %+v, %v; it is somebody's", overwrite, removed, failure)
			}
		}
		if found, err := filter.look(f.Table, testRun); err != nil || found == nil ||
			len(found.rules)+len(found.ports)+len(found.others) > 0 {
			t.Errorf("the table is not as it was: %+v, %v", found, err)
		}
	})
	t.Run("another run's", func(t *testing.T) {
		t.Parallel()
		filter := emptyNetwork(t)
		built(t, filter, f)
		removed, failure := removeFirewall("other-run", api.RemoveFirewall{Overwrite: true}, filter)
		if failure != nil || removed.Removed {
			t.Errorf("removing another run's: %+v, %v; it is not touched", removed, failure)
		}
		if table, err := filter.find(f.Table); table == nil || err != nil {
			t.Errorf("another run's table is gone: %v", err)
		}
	})
	for _, overwrite := range []bool{false, true} {
		t.Run(fmt.Sprintf("with others' rules, overwrite %v", overwrite), func(t *testing.T) {
			t.Parallel()
			filter := emptyNetwork(t)
			built(t, filter, f)
			filter.conn.AddRule(&nftables.Rule{
				Table: table, Chain: &nftables.Chain{Name: forwardChain, Table: table}, Exprs: accept,
				UserData: userdata.AppendString(nil, userdata.TypeComment, "ours"),
			})
			filter.conn.AddChain(&nftables.Chain{Table: table, Name: "theirs"})
			if err := filter.conn.Flush(); err != nil {
				t.Fatal(err)
			}
			removed, failure := removeFirewall(testRun, api.RemoveFirewall{Overwrite: overwrite}, filter)
			if failure != nil {
				t.Fatalf("remove: %v", failure)
			}
			found, err := filter.look(f.Table, testRun)
			switch {
			case err != nil:
				t.Fatal(err)
			case overwrite && (found != nil || len(removed.Left) > 0):
				t.Errorf("with overwrite something is left: %+v, %v", found, removed.Left)
			case !overwrite &&
				(found == nil || len(found.rules) != 1 || found.rules[0].run != "" || len(found.ports) > 0):
				t.Errorf("not theirs alone is left: %+v", found)
			case !overwrite && strings.Join(removed.Left, ", ") != "a rule, chain theirs":
				t.Errorf("told as left: %q", removed.Left)
			}
		})
	}
	t.Run("saved and loaded, which loses the mark", func(t *testing.T) {
		t.Parallel()
		filter := emptyNetwork(t)
		built(t, filter, f)
		chain := &nftables.Chain{Name: forwardChain, Table: table}
		rules, err := filter.conn.GetRules(table, chain)
		if err != nil || len(rules) != 1 {
			t.Fatalf("%v, %v", rules, err)
		}
		filter.conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rules[0].Exprs})
		if err := errors.Join(filter.conn.DelRule(rules[0]), filter.conn.Flush()); err != nil {
			t.Fatal(err)
		}
		removed, failure := removeFirewall(testRun, api.RemoveFirewall{}, filter)
		if failure != nil || !removed.Removed || removed.Expired || len(removed.Left) != 1 {
			t.Errorf("%+v, %v; the rule is told as left, and as blocking", removed, failure)
		}
		if now, err := filter.look(f.Table, testRun); err != nil || len(now.ports) > 0 {
			t.Errorf("the port is still blocked: %+v, %v", now, err)
		}
	})
	t.Run("mended by the candidate", func(t *testing.T) {
		t.Parallel()
		filter := emptyNetwork(t)
		built(t, filter, f)
		filter.conn.FlushChain(&nftables.Chain{Name: forwardChain, Table: table})
		if err := filter.conn.Flush(); err != nil {
			t.Fatal(err)
		}
		removed, failure := removeFirewall(testRun, api.RemoveFirewall{}, filter)
		if failure != nil || !removed.Removed || !removed.Expired || len(removed.Left) > 0 {
			t.Errorf("after its rule was deleted: %+v, %v; the rest should go", removed, failure)
		}
	})
}

// FuzzMark: whatever others have put into a rule's user data, it is read without a panic, and only what we wrote is
// taken for ours.
func FuzzMark(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x67, 200, 'a'})
	f.Add(userdata.Append(userdata.AppendString(nil, userdata.TypeComment, "web"), markType,
		[]byte(mark{testRun, 27000}.String())))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := markOf(data)
		if m.run == "" {
			return
		}
		again := markOf(userdata.Append(nil, markType, []byte(m.String())))
		if again != m {
			t.Errorf("%q is read as %+v, which is written as %+v", data, m, again)
		}
	})
}
