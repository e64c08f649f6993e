package runner

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
)

// judge turns an answer's status into an outcome; now is the receiver's clock.
func judge(status int, header http.Header, now time.Time) lanegate.Ending {
	end := lanegate.Ending{Outcome: lanegate.Failed, Error: "the target answered " + statusText(status)}
	switch {
	case status >= 200 && status < 300:
		return lanegate.Ending{Outcome: lanegate.Succeeded}
	case status >= 300 && status < 400:
		end.Error += redirection(header.Get("Location"))
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		if wait, ok := retryAfter(header, now); ok {
			end.Outcome, end.DeferFor = lanegate.Deferred, wait
			end.Error += " and asked to wait " + lanegate.FormatDuration(wait)
		}
	case status == http.StatusRequestTimeout || status == http.StatusTooEarly:
	case status < 500:
		end.Permanent = true // 4xx, and 1xx that is no answer at all
	}
	return end
}

func statusText(status int) string {
	if text := http.StatusText(status); text != "" {
		return strconv.Itoa(status) + " " + text
	}
	return strconv.Itoa(status)
}

// redirection names where a redirect points, without its query, which may hold a
// token.
func redirection(location string) string {
	if location == "" {
		return ""
	}
	u, err := url.Parse(location)
	if err != nil {
		return "; a redirect to an unreadable address was not followed"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return fmt.Sprintf("; the redirect to %s was not followed: put the final address into the class", u)
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3): whole seconds, or an
// HTTP date in the future, judged by the answer's own Date if there is one, so
// that the two clocks need not agree. At most lanegate.MaxDefer; what is absurd
// (ten years) or no such value does not count.
func retryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	if digits := strings.Trim(value, "0123456789") == ""; digits {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(lanegate.MaxDuration/time.Second) {
			return 0, false
		}
		return min(time.Duration(seconds)*time.Second, lanegate.MaxDefer), true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if sent, err := http.ParseTime(header.Get("Date")); err == nil {
		now = sent
	}
	wait := at.Sub(now)
	if wait <= 0 || wait > lanegate.MaxDuration {
		return 0, false
	}
	return min(wait, lanegate.MaxDefer), true
}
