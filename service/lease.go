package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
)

// settingLease holds the lease that the processes on a database have agreed on,
// and when one of them last started with it: "1m0s 2026-03-02T01:00:00Z".
const settingLease = "lease"

// leaseHolds is how long an agreement stands without a live worker: a process
// that has agreed registers its worker within it.
const leaseHolds = 2 * time.Minute

// AgreeLease makes sure that all processes on one database judge liveness by the
// same lease. One with a shorter lease would declare a worker dead whose guards,
// by their longer one, let its runs go on. A lease may change while no worker is
// live; otherwise the answer is ErrLeaseDiffers and says which one is in force.
func (s *Service) AgreeLease(ctx context.Context, lease time.Duration) error {
	workers, err := s.store.LiveWorkers(ctx)
	if err != nil {
		return err
	}
	return s.store.Change(ctx, func(tx ConfigTx) error {
		text, err := tx.Setting(settingLease)
		if err != nil {
			return err
		}
		if text != "" {
			agreed, since, err := parseLease(text)
			if err != nil {
				return err
			}
			// By the database's clock, which wrote the beats: of a crash of all
			// processes rows are left that nobody has declared dead.
			beating := slices.DeleteFunc(workers, func(w WorkerInfo) bool { return tx.Now().Sub(w.BeatAt) > max(agreed, lease) })
			if agreed != lease && (len(beating) > 0 || tx.Now().Sub(since) < leaseHolds) {
				return lanegate.ErrLeaseDiffers.With(
					"the lease is %s here and %s for the processes on this database (workers on %s): with two leases a run could be taken for dead while it lives. Use theirs; or stop all of them, wait %s, and start all with the new one.",
					lanegate.FormatDuration(lease), lanegate.FormatDuration(agreed), hostsOf(beating), lanegate.FormatDuration(max(leaseHolds, agreed)))
			}
		}
		return tx.SetSetting(settingLease, lease.String()+" "+tx.Now().UTC().Format(time.RFC3339))
	})
}

func parseLease(text string) (lease time.Duration, since time.Time, err error) {
	first, second, _ := strings.Cut(text, " ")
	if lease, err = time.ParseDuration(first); err == nil {
		since, err = time.Parse(time.RFC3339, second)
	}
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("setting %q of the database: %w", settingLease, err)
	}
	return lease, since, nil
}

// hostsOf names the hosts of some workers.
func hostsOf(workers []WorkerInfo) string {
	if len(workers) == 0 {
		return "no host just now"
	}
	hosts := make([]string, len(workers))
	for i, w := range workers {
		hosts[i] = w.Host
	}
	slices.Sort(hosts)
	return strings.Join(slices.Compact(hosts), ", ")
}
